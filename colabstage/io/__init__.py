"""What all other packages build on: files, who made them, retries, pipelines, progress, and text for people."""
