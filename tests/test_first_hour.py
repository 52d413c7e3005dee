"""Names that people try in the first hour, and the message if one does not exist."""

import html
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import colabstage as cs
from colabstage.errors import ArgumentError, OptionError, SourceNotFoundError, SourceReadError, SplitNotFoundError
from tests.support.archives import zip_bytes
from tests.support.command import run_command
from tests.support.http_knobs import WebFault
from tests.support.http_server import WebServer
from tests.support.images import in_classes, make_tree, read_tree

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two classes of pictures."""
    return make_tree(tmp_path / "photos", in_classes(8))


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Where datasets go."""
    return {"local_dir": tmp_path / "here", "cache_dir": tmp_path / "cache"}


def run(code: str, *arguments: str) -> str:
    """The output of a new interpreter."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT).stdout


@pytest.mark.parametrize(
    ("verb", "arguments", "named", "wanted"),
    [
        ("stage_dataset", ("photos", (64, 64)), {}, "'source' by position"),
        ("publish_file", ("a", "b", "c"), {}, "'target' by position"),
        pytest.param("resumable", (), {"model": None}, "'folder'", marks=pytest.mark.torch),
        ("list_runs", (), {}, "'folder'"),
        ("mount_drive", (), {"force": True}, "'force'"),
    ],
)
def test_a_call_that_does_not_fit_names_the_argument(
    verb: str, arguments: tuple[object, ...], named: dict[str, object], wanted: str
) -> None:
    """For every public function, whether its options come from a class or are listed."""
    with pytest.raises(ArgumentError, match=wanted):
        getattr(cs, verb)(*arguments, **named)


def test_without_torch_a_star_imports_all_but_what_needs_it() -> None:
    """Accessed by name, those say that torch is missing."""
    code = """
import importlib.machinery as machinery
find = machinery.PathFinder.find_spec
machinery.PathFinder.find_spec = lambda name, *more: None if name == "torch" else find(name, *more)
from colabstage import *
print("stage_dataset" in dir(), "make_loader" in dir())
import colabstage
for name in ("make_loader", "transforms"):
    try: getattr(colabstage, name)
    except ImportError as error: print(type(error).__name__, "pip install torch" in str(error))
"""
    assert run(code).split() == ["True", "False", *["MissingDependencyError", "True"] * 2]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("wrong", "meant"), [("trian", "'train'"), ("Train", "'train'"), ("training", "'train'"), ("val", "splits=")]
)
def test_a_misspelt_split_is_no_new_one(source: Path, places: dict[str, Any], wrong: str, meant: str) -> None:
    """A similar name is suggested; only for a different one does the message show the line that makes such a split."""
    data = cs.stage_dataset(source, progress=False, **places)
    with pytest.raises(SplitNotFoundError, match=rf"'{wrong}'") as refused:
        data.loader(wrong, 2)
    assert str(refused.value).partition("samples). ")[2].count(meant) == 1


def test_a_source_that_is_gone_and_a_list_have_readable_names(source: Path, places: dict[str, Any]) -> None:
    """A report without error numbers of the system, and a plan without digests."""
    folders = [str(folder) for folder in sorted(source.iterdir())]
    assert str(cs.plan_stage(folders, **places)).startswith(f"'{folders[0]} and 1 more'")
    cs.stage_dataset(source, progress=False, **places)
    shutil.rmtree(source)
    (note,) = cs.stage_dataset(source, progress=False, **places).report.notes
    assert str(source) in note
    assert "Errno" not in note


def test_datasets_are_listed_with_options_and_a_total(source: Path, places: dict[str, Any]) -> None:
    """From the package itself, and on the command line."""
    for options in ({}, {"image_size": (8, 12)}, {"seed": 7, "splits": 0.5}):
        cs.stage_dataset(source, progress=False, **places, **options)
    listed = cs.list_datasets(**places)
    assert len(listed) == 6
    noted = [one.options for one in listed]
    for expected in ({}, {"image_size": "8x12"}, {"seed": 7, "splits": {"train": 0.5, "test": 0.5}}):
        assert noted.count(expected) == 2
    flags = "--local-dir", str(places["local_dir"]), "--cache-dir", str(places["cache_dir"])
    said = run_command("cache", "list", *flags).stdout
    assert said.startswith("6 datasets")
    assert said.count("image_size=8x12") == 2
    assert listed._repr_html_().count(">here</td>") == 3


def test_what_a_call_did_is_a_report_in_a_notebook(source: Path, tmp_path: Path) -> None:
    """Its sentences, as printed, and not the text of a Python object."""
    archive, copy = shutil.make_archive(str(tmp_path / "photos"), "zip", source), tmp_path / "kept/photos.zip"
    for done in (
        cs.publish_file(archive, copy, progress=False),
        cs.verify_file(copy, progress=False),
        cs.restore_file(copy, tmp_path / "restored.zip", progress=False),
        cs.fetch_files(source, tmp_path / "fetched", progress=False),
        cs.extract_archive(archive, tmp_path / "unpacked", progress=False),
    ):
        assert f"<strong>{html.escape(str(done).splitlines()[0])}" in done._repr_html_()


def test_what_was_deleted_by_hand_is_not_called_present(source: Path, places: dict[str, Any]) -> None:
    """Only who waits for the copy in the cache has it looked for; the next call then publishes it again."""
    cs.stage_dataset(source, progress=False, **places)
    shutil.rmtree(places["cache_dir"])
    data = cs.stage_dataset(source, progress=False, **places)
    assert "not looked for" in data.report.cached
    with pytest.raises(SourceNotFoundError, match="Call stage_dataset again"):
        data.wait_published()
    again = cs.stage_dataset(source, progress=False, **places)
    assert again.report.cached == "yes, copied there now"
    assert again.wait_published() is not None


STAGE = """
import sys, logging, colabstage as cs
data = cs.stage_dataset(sys.argv[1])
print(data.report.origin, data.report.cached)
"""


def test_variables_set_the_folders_and_what_is_shown(source: Path, tmp_path: Path) -> None:
    """Folders and progress bars."""
    variables = {
        "COLABSTAGE_LOCAL_DIR": str(tmp_path / "fast"),
        "COLABSTAGE_CACHE_DIR": str(tmp_path / "kept"),
        "COLABSTAGE_NO_PROGRESS": "1",
    }
    command = [sys.executable, "-c", STAGE, str(source)]
    env = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT, env=env)
    assert done.stdout.split()[:2] == ["source", "yes,"]
    assert len(list((tmp_path / "kept").glob("photos-*.h5"))) == 1
    assert done.stderr == ""


@pytest.mark.parametrize(
    "address", ["https://127.0.0.1:9/photos.zip", "s3://bucket/photos", "https://drive.google.com/file/d/1abcdefghijk"]
)
def test_offline_nothing_on_the_network_is_opened(
    source: Path, address: str, places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at once, naming the variable; local data is still read."""
    monkeypatch.setenv("COLABSTAGE_OFFLINE", "1")
    with pytest.raises(SourceReadError, match="COLABSTAGE_OFFLINE"):
        cs.stage_dataset(address, progress=False, **places)
    for origin in ("source", "local"):
        assert cs.stage_dataset(source, progress=False, **places).report.origin == origin
    monkeypatch.setenv("COLABSTAGE_OFFLINE", "perhaps")
    with pytest.raises(OptionError, match="perhaps"):
        cs.stage_dataset(address, progress=False, **places)


def test_offline_what_was_staged_from_the_web_is_used(
    tmp_path: Path, source: Path, places: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a request, both local data and the cache are used; the report says that nothing was compared."""
    with WebServer({"photos.zip": zip_bytes(read_tree(source))}) as served:
        address = served.url("photos.zip")
        cs.stage_dataset(address, progress=False, **places)
        asked = len(served.requests)
        monkeypatch.setenv("COLABSTAGE_OFFLINE", "1")
        for local in (places["local_dir"], tmp_path / "another"):
            data = cs.stage_dataset(address, progress=False, **{**places, "local_dir": local})
            assert data.report.origin == ("local" if local == places["local_dir"] else "cache")
            assert any("COLABSTAGE_OFFLINE" in note for note in data.report.notes)
        assert len(served.requests) == asked


@pytest.mark.parametrize("door", ["stage_dataset", pytest.param("dataset_h5", marks=pytest.mark.torch)])
def test_a_busy_server_ends_in_an_error_that_the_page_lists(door: str, tmp_path: Path) -> None:
    """Not in one that only the code behind the function knows."""
    how: dict[str, dict[str, Any]] = {
        "stage_dataset": {"local_dir": tmp_path / "here", "cache_dir": None, "progress": False},
        "dataset_h5": {"disk_limit": "1GB"},
    }
    with WebServer({}, faults=(WebFault(kind="status", status=503),)) as served:
        address = served.url("photos.h5" if door == "dataset_h5" else "photos.zip")
        with pytest.raises(SourceReadError, match="503") as raised:
            getattr(cs, door)(address, **how[door])
    assert type(raised.value) is SourceReadError
