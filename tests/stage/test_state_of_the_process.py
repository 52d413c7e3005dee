"""The state of the process causes no strange error: a fork, no stderr, a stop during an import."""

import io
import os
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest

from colabstage import fetch_files, publish_file, stage_dataset
from colabstage.errors import ColabstageError
from tests.support.archives import stored_zip
from tests.support.images import image, make_tree
from tests.support.steps import Terminal

_TIMEOUT_S = 120
SIZE = (8, 8)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of all calls."""
    photos = {f"{'ab'[number % 2]}/{number}.png": image(number, size=(9, 9)) for number in range(8)}
    folder = make_tree(tmp_path_factory.mktemp("source"), {f"images/{name}": one for name, one in photos.items()})
    return make_tree(folder, {"images.zip": stored_zip(photos), "model.bin": b"m" * 5000})


def _slow(x: Any) -> Any:
    time.sleep(0.15)
    return x


def _in_child(work: Callable[[], object]) -> str:
    """Return the outcome of a call in a forked child: the name of its error, or ""."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            said = ""
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = f"{type(error).__name__} {isinstance(error, ColabstageError)}"
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours) as answer:
        return answer.read()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_what_its_parent_stages(tmp_path: Path, source: Path) -> None:
    data = stage_dataset(
        source / "images.zip",
        local_dir=tmp_path,
        cache_dir=None,
        image_size=SIZE,
        streaming=True,
        prepare=_slow,
        progress=False,
    )
    assert _in_child(lambda: data.wait(30.0, progress=False)) == "WorkersLostError True"
    data.wait(_TIMEOUT_S, progress=False)


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("call", ["next", "closed"])
def test_a_forked_child_is_told_that_its_parents_threads_stayed_behind(tmp_path: Path, source: Path, call: str) -> None:
    data = stage_dataset(source / "images.zip", local_dir=tmp_path, cache_dir=None, image_size=SIZE, progress=False)
    with data.loader("train", 2, seed=0) as loader:
        batches = iter(loader)
        next(batches)
        if call == "closed":
            loader.close()
            with pytest.raises(ColabstageError, match="new one"):
                next(batches)
        assert _in_child(lambda: list(batches)).endswith("True")


@pytest.mark.parametrize(
    "call",
    [
        lambda source, to: stage_dataset(source / "images", local_dir=to, cache_dir=None, image_size=SIZE),
        lambda source, to: stage_dataset(
            source / "images.zip", local_dir=to, cache_dir=None, image_size=SIZE, streaming=True
        ).wait(_TIMEOUT_S),
        lambda source, to: fetch_files(source / "images", to / "tree"),
        lambda source, to: publish_file(source / "model.bin", to / "model.bin"),
    ],
    ids=["stage", "streaming", "fetch", "publish"],
)
def test_a_process_without_stderr_works(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path, Path], object]
) -> None:
    closed = io.StringIO()
    closed.close()
    for name, stream in (("none", None), ("closed", closed)):
        monkeypatch.setattr(sys, "stderr", stream)
        call(source, tmp_path / name)
        assert any((tmp_path / name).iterdir())


@pytest.mark.parametrize(("wanted", "draws"), [(False, False), (True, True)])
def test_waiting_is_as_silent_as_staging(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, *, wanted: bool, draws: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with redirect_stderr(Terminal()) as drawn:
        data = stage_dataset(
            source / "images.zip",
            local_dir=tmp_path,
            cache_dir=None,
            image_size=(400, 400),
            streaming=True,
            progress=wanted,
        )
        data.wait(_TIMEOUT_S)
    assert bool(drawn.getvalue()) is draws
