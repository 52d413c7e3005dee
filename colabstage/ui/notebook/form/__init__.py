"""The staging form: the arguments of `stage_dataset` as fields, the same as a line of Python, and buttons."""
