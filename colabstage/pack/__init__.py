"""Samples to one HDF5 file: decode once, write each sample straight to its final place."""
