"""Read rows from HDF5 files without torch: how the bytes are stored, the engines that copy them, and all targets."""
