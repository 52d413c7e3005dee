"""Tests of colabstage. A package, because IPython 7 puts a folder on the path that has another package of this name."""
