"""All kinds of archive are the same dataset: they have the same rows, and as plain files the same files."""

from pathlib import Path
from typing import Any

import h5py
import pytest

from colabstage import pack_dataset, stage_dataset
from colabstage.errors import ArchiveError
from tests.contract.served import labels_in, numbers_in
from tests.support.archives import MAKERS, write_archive
from tests.support.http_knobs import WebKnobs
from tests.support.http_server import WebServer
from tests.support.images import image, in_classes
from tests.support.invariants import Home, contents
from tests.support.made_files import write_files

NUMBERS = in_classes(6)
FILES = {name: image(number) for name, number in NUMBERS.items()}
# The extra files that operating systems add.
JUNK = {"__MACOSX/cat/._000.png": b"x", ".DS_Store": b"x"}
LABELS = {name: name.partition("/")[0] for name in NUMBERS}


@pytest.fixture(params=MAKERS)
def archive(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == ".rar":
        pytest.importorskip("rarfile", reason="needs rarfile: pip install 'colabstage[archives]'")
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    return write_archive(tmp_path / f"mine/photos{request.param}", FILES | JUNK)


def test_staged(archive: Path, tmp_path: Path) -> None:
    """As a pack and as plain files."""
    home = Home(tmp_path, theirs=["mine"])
    data = stage_dataset(archive, keep="both", local_dir=tmp_path / "local", cache_dir=None, progress=False)
    assert (numbers_in(data.path), labels_in(data.path)) == (NUMBERS, LABELS)
    assert data.files is not None
    home.check(finished=True, found={"files": contents(data.files)}, expected=[{"files": FILES}])


# Without ranges, all are fetched whole first: `test_same` has a zip in every run.
@pytest.mark.parametrize("ranges", ["honoured", pytest.param("none", marks=[pytest.mark.long])])
def test_staged_from_the_web(archive: Path, tmp_path: Path, ranges: str) -> None:
    home = Home(tmp_path, theirs=["mine"])
    with WebServer({archive.name: archive}, knobs=WebKnobs(ranges=ranges)) as server:  # type: ignore[arg-type]
        data = stage_dataset(server.url(archive.name), local_dir=tmp_path / "local", cache_dir=None, progress=False)
    assert (numbers_in(data.path), labels_in(data.path)) == (NUMBERS, LABELS)
    home.check(finished=True)


# Every other kind on the web, the others here; in the long form all in both places.
@pytest.mark.parametrize(
    ("archive", "is_remote"),
    [
        pytest.param(kind, is_remote, marks=[pytest.mark.long] * (number % 2 != is_remote))
        for number, kind in enumerate(MAKERS)
        for is_remote in (False, True)
    ],
    indirect=["archive"],
)
def test_an_archive_and_the_table_of_its_images(archive: Path, tmp_path: Path, is_remote: bool) -> None:
    """In a list, in any order; the table's changes are noticed."""
    place = archive.parent / "table"
    place.mkdir()
    flat = write_archive(place / archive.name, {name.replace("/", "_"): content for name, content in FILES.items()})
    table = flat.with_name("labels.csv")
    with WebServer({flat.name: flat, table.name: table}) as server:
        sources = [server.url(flat.name), server.url(table.name)] if is_remote else [flat, table]
        for number, labels in enumerate((LABELS, {name: f"another {label}" for name, label in LABELS.items()})):
            rows = [f"{name.replace('/', '_')},{label}\n" for name, label in labels.items()]
            table.write_text(f"file,label\n{''.join(rows)}")
            data = stage_dataset(
                sources[:: (-1) ** number],
                local_dir=tmp_path / f"{number}",
                cache_dir=tmp_path / "cache",
                progress=False,
            )
            assert labels_in(data.path) == {name.replace("/", "_"): label for name, label in labels.items()}


@pytest.mark.parametrize("call", [stage_dataset, pack_dataset])
def test_a_folder_that_drive_downloads_as_two_zips(tmp_path: Path, call: Any) -> None:
    """Whichever of the two is given."""
    names = [tmp_path / f"photos-20240105T101112Z-00{number}.zip" for number in (1, 2)]
    for half, name in enumerate(names):
        write_archive(name, dict([*FILES.items()][half::2]))
    target = {"target": tmp_path / "a.h5"} if call is pack_dataset else {"local_dir": tmp_path, "cache_dir": None}
    made = call(names[1], **target, progress=False)
    assert labels_in(Path(made.path)) == LABELS


@pytest.mark.parametrize("turn", [1, -1], ids=["first", "last"])
def test_a_folder_and_the_table_of_its_images(tmp_path: Path, turn: int) -> None:
    """In any order, as for an archive."""
    folder = write_files(tmp_path / "photos", {f"{number}.png": image(number) for number in range(4)})
    table = tmp_path / "labels.csv"
    table.write_text("file,label\n0.png,cat\n1.png,dog\n2.png,cat\n3.png,dog\n")
    data = stage_dataset([folder, table][::turn], local_dir=tmp_path / "local", cache_dir=None, progress=False)
    assert labels_in(data.path) == {"0.png": "cat", "1.png": "dog", "2.png": "cat", "3.png": "dog"}
    assert "united" not in str(data.report)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_table_of_pixels_alone(tmp_path: Path, is_remote: bool) -> None:
    """Whatever is beside it: other tables, images."""
    lines = [["label", *(f"pixel{number}" for number in range(16))], ["1"] * 17]
    table = "".join(f"{','.join(cells)}\n" for cells in lines).encode()
    place = write_files(tmp_path / "mine", {"0.png": image(0), "a.csv": table, "b.csv": table})
    with WebServer({"b.csv": place / "b.csv"}) as server:
        source = server.url("b.csv") if is_remote else place / "b.csv"
        data = stage_dataset(source, local_dir=tmp_path / "local", cache_dir=None, progress=False)
    with h5py.File(data.path) as file:
        assert (file["X_train"].shape, file["Y_train"][:].tolist()) == ((1, 4, 4, 1), [1])


def test_another_table_of_the_name_of_one_in_the_archive(tmp_path: Path) -> None:
    """Nothing says which of the two counts."""
    table = write_files(tmp_path / "mine", {"labels.csv": b"file,label\n0.png,cat\n1.png,dog\n"}) / "labels.csv"
    members = {f"{number}.png": image(number) for number in range(2)} | {"labels.csv": b"file,label\n0.png,dog\n"}
    with pytest.raises(ArchiveError, match=r"'labels\.csv' is in more than one part"):
        stage_dataset(
            [write_archive(tmp_path / "photos.zip", members), table],
            local_dir=tmp_path / "local",
            cache_dir=None,
            progress=False,
        )
