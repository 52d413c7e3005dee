"""Runs the command `colabstage` in this process."""

import io
import runpy
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from unittest import mock

import typer.main

# All commands with their options, which every call would build from their signatures anew, in a fiftieth of a second.
_built = cache(typer.main.get_command)


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m colabstage WORDS…` without another interpreter, and return its outcome."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["colabstage", *words]),
        mock.patch.object(typer.main, "get_command", _built),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            runpy.run_module("colabstage", run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["colabstage", *words], code, out.getvalue(), err.getvalue())
