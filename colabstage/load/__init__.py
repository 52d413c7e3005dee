"""Read batches out of HDF5 at the memory's speed."""
