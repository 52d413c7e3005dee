"""Making it true that a dataset is local and ready."""
