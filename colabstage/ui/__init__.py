"""Faces: the command line, the demo, what is clicked in a notebook, plots. Nothing below imports them."""
