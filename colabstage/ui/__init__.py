"""Faces: the command line, the demo, plots. Nothing below imports them."""
