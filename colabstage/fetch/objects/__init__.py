"""Files and folders in buckets and on file servers: all that fsspec knows."""
