"""A pytest plugin that imports the modules of the tests and looks for no test in them, so that they are compiled."""

from contextlib import suppress


def pytest_pycollect_makeitem() -> list[object]:
    """Make nothing of any name in a module."""
    return []


def pytest_collection_finish() -> None:
    """Have Hypothesis note the constants of all modules, as it would for the first test, in each process at once."""
    with suppress(ImportError):
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()
