"""Stage a dataset once, read it at memory speed."""
