"""Make a dataset local and ready."""
