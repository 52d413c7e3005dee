"""The real JupyterLab and Chromium, for the tests of what notebooks show."""

from tests.browser import browser, jupyter, open_notebook

__all__ = ["browser", "jupyter", "open_notebook"]
