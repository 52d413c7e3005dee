"""The real JupyterLab and Chromium, for the tests of what notebooks show."""

from tests.browser import jupyter, lab, open_notebook

__all__ = ["jupyter", "lab", "open_notebook"]
