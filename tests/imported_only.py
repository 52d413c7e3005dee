"""A pytest plugin that imports what tests need and looks for none in their modules: processes are forked from it."""

from contextlib import suppress
from importlib import import_module

# What many tests import when they run: what torch's optimizers need, and the S3 server with its client.
_BY_MANY = ("torch._dynamo", "moto.server", "s3fs")


def pytest_pycollect_makeitem() -> list[object]:
    """Make nothing of any name in a module."""
    return []


def pytest_collection_finish() -> None:
    """Import the rest while pytest rewrites assertions: a plugin among it, imported before, would be an error.

    And have Hypothesis note the constants of all modules, as it would for the first test of each process.
    """
    for name in _BY_MANY:
        with suppress(ImportError):
            import_module(name)
    with suppress(ImportError):
        from hypothesis.internal.conjecture.providers import _get_local_constants

        _get_local_constants()
