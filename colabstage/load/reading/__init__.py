"""Read rows out of HDF5 files, without torch: how the bytes lie, engines that copy them, targets of every kind."""
