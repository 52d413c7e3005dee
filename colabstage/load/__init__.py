"""Read batches from HDF5 files at the speed of memory."""
