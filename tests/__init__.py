"""Tests of colabstage, as a package: IPython 7 puts a folder on the path in which there is another one of that name."""
