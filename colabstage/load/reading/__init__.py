"""Rows out of HDF5 files, without torch: how the bytes lie, the engines that copy them, and targets of every kind."""
