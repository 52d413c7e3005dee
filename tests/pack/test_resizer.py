"""What resizes a pack's images: decided in advance, the same everywhere, and recorded in the file."""

import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset, stage_dataset
from colabstage.errors import DecodeError, MissingDependencyError
from colabstage.h5.info import read_info
from tests.images.files import encode
from tests.support.deadlines import lower
from tests.support.made_files import write_files

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif("avx2" not in Path("/proc/cpuinfo").read_text(), reason="torch's kernel needs AVX2"),
]
OPTIONS: dict[str, Any] = {"image_size": (9, 8), "encoding": "pixels", "progress": False}
# Just enough images for torch to be imported, each hardly larger than it takes.
MANY = 2000
# So many are enough in most of these tests.
COUNT = 100
LOWER = "pack", "TORCH_SAMPLES", MANY // COUNT
FEWER = pytest.mark.usefixtures("fewer")
# What a script begins with, for the same.
PREAMBLE = f"from tests.support.deadlines import lower; lower(*{LOWER})"
BROKEN = "class1/00051.bmp"


def image(number: int) -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (42 + number % 5, 48 - number % 7, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = {f"class{number % 2}/{number:05}.bmp": encode(image(number), "BMP") for number in range(COUNT)}
    return write_files(tmp_path_factory.mktemp("many"), made)


@pytest.fixture
def fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(*LOWER, monkeypatch.setattr)


@pytest.fixture(scope="module")
def by_torch(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "torch.h5"
    with pytest.MonkeyPatch.context() as patch:
        lower(*LOWER, patch.setattr)
        report = pack_dataset(many, out, **OPTIONS)
    assert report.resizer == "torch"
    assert "resized by torch" in str(report)
    return out


@pytest.fixture(scope="module")
def by_pillow(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("packs") / "pillow.h5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        assert "torch" not in str(pack_dataset(many, out, **OPTIONS))
    return out


def rows(path: Path) -> np.ndarray[Any, Any]:
    with h5py.File(path) as file:
        return np.asarray(file["X_train"][()])


def test_no_pixel_is_more_than_one_level_off_pillows(by_torch: Path, by_pillow: Path) -> None:
    """Each file also says what resized it."""
    assert [read_info(path).resizer for path in (by_torch, by_pillow)] == ["torch", "pillow"]
    assert np.abs(rows(by_torch).astype(int) - rows(by_pillow)).max() == 1


@pytest.mark.parametrize(
    ("count", "options", "resizer"),
    [
        (MANY, {}, "torch"),
        (MANY - 1, {}, "pillow"),
        (COUNT, {"color_mode": "grayscale"}, "pillow"),
        (COUNT, {"encoding": "encoded"}, None),
    ],
    ids=["many", "few", "grey", "later"],
)
def test_where_torch_gains_nothing_it_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, options: dict[str, Any], resizer: str | None
) -> None:
    if count == COUNT:
        lower(*LOWER, monkeypatch.setattr)
    (tmp_path / "some").mkdir()
    image(0).save(tmp_path / "one.bmp")
    for number in range(count):
        (tmp_path / f"some/{number}.bmp").hardlink_to(tmp_path / "one.bmp")
    report = pack_dataset(tmp_path / "some", tmp_path / "out.h5", **{**OPTIONS, **options})
    assert report.resizer == read_info(tmp_path / "out.h5").resizer == resizer


@FEWER
def test_what_is_restored_imports_no_torch(by_torch: Path, many: Path, tmp_path: Path) -> None:
    """That takes less time than the import."""
    staged = stage_dataset(many, local_dir=tmp_path / "a", cache_dir=tmp_path / "cache", **OPTIONS)
    assert read_info(staged.path).resizer == "torch"
    script = f"""{PREAMBLE}
import sys
from colabstage import stage_dataset
data = stage_dataset(sys.argv[1], local_dir=sys.argv[2], cache_dir=sys.argv[3], **{OPTIONS})
print(data.report.origin, data.info.resizer, "torch" in sys.modules)
"""
    command = [sys.executable, "-c", script, *map(str, (many, tmp_path / "b", tmp_path / "cache"))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["cache", "torch", "False"]


def test_torch_that_is_installed_and_broken_is_replaced_by_pillow(
    by_torch: Path, by_pillow: Path, many: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken/torch").mkdir(parents=True)
    (tmp_path / "broken/torch/__init__.py").write_text("raise OSError('libcudart.so is missing')")
    call = f"pack_dataset({str(many)!r}, {str(tmp_path / 'out.h5')!r}, **{OPTIONS})"
    script = f"{PREAMBLE}; from colabstage import pack_dataset; {call}"
    path = os.pathsep.join([str(tmp_path / "broken"), str(Path(__file__).resolve().parents[2])])
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300, env={**os.environ, "PYTHONPATH": path})
    assert (tmp_path / "out.h5").read_bytes() == by_pillow.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken", "out.h5", "out.h5.json"]


@pytest.fixture
def begun(fewer: None, by_torch: Path, many: Path, tmp_path: Path) -> Path:
    """The place of a pack that stopped at a broken image, which has been repaired."""
    victim = many / BROKEN
    whole = victim.read_bytes()
    try:
        victim.write_bytes(b"no image")
        with pytest.raises(DecodeError, match=BROKEN):
            pack_dataset(many, tmp_path / "out.h5", **OPTIONS)
    finally:
        victim.write_bytes(whole)
    return tmp_path / "out.h5"


@pytest.mark.parametrize("resizer", ["torch", "pillow"])
def test_work_of_torch_is_continued_or_begun_again_where_it_has_gone(
    by_torch: Path, by_pillow: Path, many: Path, begun: Path, monkeypatch: pytest.MonkeyPatch, resizer: str
) -> None:
    """All rows are of one of the two."""
    if resizer == "pillow":
        monkeypatch.setitem(sys.modules, "torch", None)
    report = pack_dataset(many, begun, **OPTIONS)
    assert (report.resumed > 0, report.resizer) == (resizer == "torch", resizer)
    assert begun.read_bytes() == (by_torch if resizer == "torch" else by_pillow).read_bytes()


def hide_torch() -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]


@FEWER
def test_a_worker_without_torch_refuses(by_torch: Path, tmp_path: Path, many: Path) -> None:
    """It would write other bytes than the other workers, so it says what to do; the target stays empty."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=hide_torch) as executor,
        pytest.raises(MissingDependencyError, match="torch"),
    ):
        pack_dataset(many, tmp_path / "set.h5", executor=executor, shards=2, **OPTIONS)
    assert not list(tmp_path.glob("set*.h5"))
