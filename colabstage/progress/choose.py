"""What the public `progress=` argument means."""

from __future__ import annotations

from colabstage.errors import OptionError
from colabstage.progress.notebook import NotebookProgress, in_notebook
from colabstage.progress.protocol import NullProgress, Progress
from colabstage.progress.text import TqdmProgress


def resolve_progress(progress: bool | Progress) -> Progress:
    """Turn the public `progress=` argument into a `Progress`.

    `True` is a panel in notebooks and lines of text elsewhere, `False` is silence.

    Raises:
        OptionError: it is none of these.
    """
    if progress is True:
        return NotebookProgress() if in_notebook() else TqdmProgress()
    if progress is False:
        return NullProgress()
    if not callable(getattr(progress, "step", None)):
        msg = f"progress={progress!r} cannot show progress. Pass True, False, or an object with a method step()."
        raise OptionError(msg)
    return progress
