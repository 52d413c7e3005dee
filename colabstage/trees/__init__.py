"""A read-only view of a dataset's files by name, whether they are in a folder, a zip or a tar."""
