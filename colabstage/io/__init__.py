"""What all other packages build on: files and which of them colabstage made, retries, pipelines, progress, text for
people.
"""
