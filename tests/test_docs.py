"""The pages of docs/: their code runs, their pictures of folders are right, and their links lead somewhere."""

import gc
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from colabstage import errors, pack_dataset
from colabstage.h5.info import read_info
from scripts import pages
from simulated_drive.drive import SimulatedDrive
from simulated_drive.knobs import DriveKnobs
from tests.pages import DOCS, README, ROOT, Block, anchors, blocks, links
from tests.pictures import make_picture, write_photos
from tests.support.archives import stored_zip, write_archive
from tests.support.colab import simulated_colab
from tests.support.command import run_command
from tests.support.http_server import WebServer
from tests.support.images import read_tree
from tests.support.kaggle_service import HostedDataset, KaggleService

FORMATS = DOCS[0].with_name("formats.md")
# Pages whose code needs its own process; the others run one after the other in this one.
_APART = {"drive", "kaggle", "keras", "sources"}


def page(name: str) -> Path:
    return DOCS[0].with_name(f"{name}.md")


def plain_pages() -> list[str]:
    return [path.stem for path in DOCS if path.stem not in _APART and blocks(path, "python")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the photographs that all pages use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLABSTAGE_SYSTEM_ROOT", str(tmp_path))
    monkeypatch.setenv("COLABSTAGE_LOCAL_DIR", str(tmp_path / "fast"))
    write_photos(tmp_path / "photos")
    return tmp_path


def zip_photos(target: Path, photos: Path) -> None:
    """Put the photographs into a zip."""
    write_archive(target, read_tree(photos))


def prepare_formats(here: Path) -> dict[str, object]:
    """The other files of formats.md: some folders that it draws, and some with the content it describes."""
    for block in blocks(FORMATS, "text"):
        if block.code.startswith(("faces/", "pets/", "street/", "words/", "story/")):
            make_picture(block.code, here / "drawn" / block.code.split("/")[0])
    for top in (here / "drawn").glob("*/*"):
        top.rename(here / top.name)
    make_picture("lab.npz  spectra (40, 8), grams (40,)", here / "lab")
    (here / "lab" / "lab.npz").rename(here / "lab.npz")
    write_photos(here / "newer", 6, first=100)
    (write_photos(here / "scratched")[3]).write_bytes(b"scratched")
    make_picture("letters/a1.jpg\nletters/b1.jpg\nletters/a2.jpg", here / "own")
    (here / "own" / "letters").rename(here / "letters")
    scans = "\n".join(f"scans/{('ill', 'well')[number % 2]}/patient{number % 4}-{number}.jpg" for number in range(12))
    make_picture(scans, here / "clinic").rename(here / "scans")
    zip_photos(here / "photos.zip", here / "photos")
    return {}


def prepare_loaders(here: Path) -> dict[str, object]:
    """The unlabelled images of a contest."""
    images = "\n".join(f"contest/test_images/{number}.jpg" for number in range(5))
    make_picture(images, here / "drawn").rename(here / "contest")
    return {}


def run_page(name: str, names: dict[str, object], places: dict[str, str]) -> None:
    """Run a page's blocks in order, and close what they leave open."""
    try:
        for block in blocks(page(name), "python"):
            block.run(names, places)
    finally:
        for value in list(names.values()):
            if hasattr(value, "close") and not isinstance(value, type):
                value.close()
        names.clear()
        gc.collect()


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # Lightning's, about torch and itself
@pytest.mark.parametrize("name", plain_pages())
def test_the_code_of_a_page_runs_in_order(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block runs with the names that earlier ones left."""
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # a thread that `datasets` would leave behind
    prepare = {"formats": prepare_formats, "loaders": prepare_loaders}
    names = prepare[name](here) if name in prepare else {}
    run_page(name, names, {"s3://bucket": f"file://{here}/bucket"})
    if missing := dict.fromkeys(block.missing for block in blocks(page(name), "python") if block.missing):
        pytest.skip(f"all but the blocks that need {' and '.join(missing)} ran: pip install {' '.join(missing)}")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.fuse
def test_the_drive_page_runs_on_a_simulated_drive(here: Path) -> None:
    """Mounting, staging, publishing and flushing, in the page's order."""
    (here / "model.pt").write_bytes(b"weights")
    drive = SimulatedDrive(here / "home", knobs=DriveKnobs.quick())
    (drive.cloud / "MyDrive" / "checkpoints").mkdir()
    zip_photos(drive.cloud / "MyDrive" / "photos.zip", here / "photos")
    places = {"/content/": f"{here}/content/", "mount_drive()": f'mount_drive("{here}/content/drive")'}
    with simulated_colab(here, drive=drive):
        run_page("drive", {}, places)
        assert (drive.cloud / "MyDrive/checkpoints/model.pt").read_bytes() == b"weights"
        assert list((drive.cloud / "MyDrive/colabstage").glob("photos-*.h5"))


@pytest.mark.slow
def test_the_page_on_sources_runs(here: Path) -> None:
    """With a server that stands for the web, and archives beside it."""
    zip_photos(here / "photos.zip", here / "photos")
    zip_photos(here / "part-2.zip", write_photos(here / "others", 6, first=100)[0].parents[1])
    with WebServer({"photos.zip": here / "photos.zip", "part-1.zip": here / "photos.zip"}) as server:
        run_page("sources", {}, {"https://example.org/": server.url("")})
    assert list((here / "copies" / "photos").rglob("*.jpg"))


@pytest.mark.slow
@pytest.mark.torch
def test_the_page_on_kaggle_runs(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Kaggle's own package, against a service that stands for Kaggle, and with a contest's files."""
    pytest.importorskip("kagglehub", reason="needs kagglehub: pip install 'colabstage[kaggle]'")
    photos = {str(path.relative_to(here / "photos")): path.read_bytes() for path in (here / "photos").rglob("*.jpg")}
    contest = here / "contest"
    for number, path in enumerate(sorted((here / "photos").rglob("*.jpg"))):
        place = contest / ("train_images" if number % 4 else "test_images") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    for name, folder in (("train.csv", "train_images"), ("sample_submission.csv", "test_images")):
        rows = [f"{path.name},{len(path.stem) % 2}" for path in sorted((contest / folder).iterdir())]
        (contest / name).write_text("\n".join(["image_id,label", *rows]) + "\n", encoding="utf-8")
    with KaggleService(here) as service:
        service.hosts.lead(monkeypatch, here / "home")
        service.add(HostedDataset("owner", "photos", stored_zip(photos)))
        names: dict[str, object] = {}
        run_page("kaggle", names, {})
        assert service.count("DownloadDataset") == 1


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("keras") is None or find_spec("tensorflow") is None,
    reason="needs keras and tensorflow: pip install -c constraints.txt --group tensorflow",
)
def test_the_keras_page_runs(here: Path) -> None:
    """In its own process, because Keras chooses its backend once, and TensorFlow never ends its threads."""
    program = "\n".join(block.code for block in blocks(page("keras"), "python"))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "KERAS_HOME": str(here), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "(16, 64, 64, 3) (16, 2)" in done.stdout


def pages_with_commands() -> list[ParameterSet]:
    needs_torch = {"command_line"}  # profiling a pack reads it through a loader
    names = [path.stem for path in DOCS if blocks(path, "bash")]
    return [pytest.param(name, marks=[pytest.mark.torch] if name in needs_torch else []) for name in names]


@pytest.mark.parametrize("name", pages_with_commands())
def test_the_commands_of_a_page_end_well(name: str, here: Path) -> None:
    """All their lines, with the photographs also as `photos.zip`, and packed as `photos.h5`."""
    pack_dataset(here / "photos", here / "photos.h5", image_size=(64, 64), progress=False)
    zip_photos(here / "photos.zip", here / "photos")
    lines = [line for block in blocks(page(name), "bash") for line in block.code.splitlines()]
    for line in lines:
        done = run_command(*shlex.split(line)[1:])
        assert done.returncode == 0, f"{line}\n{done.stderr}"
    assert lines


@pytest.mark.parametrize("block", blocks(FORMATS, "text"), ids=lambda block: re.split(r"[/\s]", block.code)[0])
def test_a_pictured_folder_is_of_the_layout_that_the_page_says(block: Block, tmp_path: Path) -> None:
    """The drawn files are packed as that layout without layout= being given."""
    top = make_picture(block.code, tmp_path / "drawn")
    pack_dataset(top, tmp_path / "pack.h5", progress=False)
    assert f"layout: {read_info(tmp_path / 'pack.h5').layout}" == block.note


@pytest.mark.parametrize("path", [README, *DOCS], ids=lambda path: path.stem)
def test_every_link_leads_somewhere(path: Path) -> None:
    """To an existing file, and to a heading in it."""
    broken = []
    for link in links(path):
        target, _, anchor = link.partition("#")
        there = path.parent / target if target else path
        if target.startswith(("https://", "mailto:")):
            continue
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(link)
    assert broken == []


def test_every_page_is_linked_from_the_first() -> None:
    """Nobody has to browse the folder; the README leads to the first page."""
    assert "docs/index.md" in links(README)
    first = page("index")
    assert {path.name for path in DOCS} - {first.name} <= {link.partition("#")[0] for link in links(first)}


def test_what_is_not_run_says_why() -> None:
    """A block that is only compiled states its reason, and there are few of them."""
    reasons = [block.why_not_run for path in [README, *DOCS] for block in blocks(path, "python") if block.why_not_run]
    assert sorted(reason.partition(",")[0] for reason in reasons) == [
        "needs Kaggle", "needs a GPU", "needs a dataset of YOLO's", "needs albumentations",
        "needs lightning", "needs the network", "needs the network", "needs torchrun",
    ]  # fmt: skip


def test_every_command_is_shown_on_some_page() -> None:
    """All commands of the command line, each with at least one line."""
    shown = {line.split()[1] for path in DOCS for block in blocks(path, "bash") for line in block.code.splitlines()}
    known = set(re.findall(r"^│ (\w+) ", run_command("--help").stdout, re.MULTILINE))
    assert {"stage", "gpu"} <= known <= shown


@pytest.mark.parametrize(("path", "text"), pages.made_pages().items(), ids=lambda value: getattr(value, "stem", ""))
def test_what_is_made_of_something_else_is_up_to_date(path: Path, text: str) -> None:
    """`python -m scripts.pages` writes it; its links lead somewhere."""
    assert path.read_text(encoding="utf-8") == text
    assert [
        link for link in links(path) if "://" not in link and not (path.parent / link.partition("#")[0]).exists()
    ] == []


def test_the_pages_for_agents_are_short_and_complete() -> None:
    """The list has every page."""
    short = ROOT / "llms.txt", ROOT / "skills/colabstage/SKILL.md"
    assert [path for path in short if len(path.read_text(encoding="utf-8").splitlines()) > 70] == []
    assert {f"docs/{path.name}" for path in DOCS if path.stem != "index"} <= set(links(ROOT / "llms.txt"))


def test_every_error_says_what_to_do() -> None:
    """Each class has a row, except base classes, which have no advice."""
    rows = dict(
        re.findall(r"^\| `(\w+Error)` \|.*\| (.*?) ?\|$", page("errors").read_text(encoding="utf-8"), re.MULTILINE)
    )
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    assert rows.keys() == classes.keys()
    assert all(rows[name] or classes[name].__subclasses__() for name in classes)
