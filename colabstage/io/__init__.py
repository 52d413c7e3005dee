"""What all other packages stand on: files and what of them is ours, retries, pipelines, progress, words for people."""
