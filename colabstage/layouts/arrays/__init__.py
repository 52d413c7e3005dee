"""Samples that are rows of arrays: .npy, .npz, and HDF5 files of other makers."""
