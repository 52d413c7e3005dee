"""What the files of a tree mean: a tree in, a table of samples out."""
