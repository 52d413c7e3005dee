"""What a disk or a mount answers inside a public function leaves it as a typed error, whichever small call it was."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import fetch_files, pack_dataset, publish_file, stage_dataset
from colabstage.errors import (
    ColabstageError,
)
from tests.support.steps import OneStep
from tests.support.verbs import SIZE, make_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What all verbs read."""
    folder = tmp_path_factory.mktemp("source")
    make_source(folder)
    return folder


class _Failing(OneStep):
    """A progress display whose own code fails."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def advance(self, amount: int = 1) -> None:
        raise self._error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOTCONN])
@pytest.mark.parametrize(
    "call",
    [
        lambda source, target, shown: stage_dataset(
            source / "images", local_dir=target, cache_dir=None, image_size=SIZE, progress=shown
        ),
        lambda source, target, shown: pack_dataset(source / "images", target / "p.h5", image_size=SIZE, progress=shown),
        lambda source, target, shown: fetch_files(source / "images.zip", target / "a.zip", progress=shown),
        lambda source, target, shown: publish_file(source / "model.bin", target / "m.bin", progress=shown),
    ],
    ids=["stage_dataset", "pack_dataset", "fetch_files", "publish_file"],
)
def test_what_the_callers_code_raises_stays_as_it_is(
    tmp_path: Path, source: Path, call: Callable[[Path, Path, Any], object], number: int
) -> None:
    error = OSError(number, os.strerror(number), "/elsewhere/progress.log")
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as caught:
        call(source, tmp_path, _Failing(error))
    assert not isinstance(caught.value, ColabstageError)
    assert caught.value.filename == error.filename
