"""User interfaces: the command line, the demo, the form and browser in a notebook, plots. No lower layer imports
them.
"""
