"""What resizes the images of a pack: decided before, the same everywhere, and said in the file."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from PIL import Image

from colabstage import pack_dataset
from colabstage.errors import DecodeError, MissingDependencyError
from colabstage.h5.info import read_info
from colabstage.images.decode import can_torch_resize
from colabstage.io.pipeline import PipelineLimits
from colabstage.pack import execute, job
from colabstage.pack.plan import TORCH_SAMPLES

if TYPE_CHECKING:
    from pathlib import Path

    from colabstage.pack.execute import PackReport

pytestmark = pytest.mark.skipif(
    not can_torch_resize(), reason="needs torch's kernel: pip install torch, on a processor with AVX2"
)
OPTIONS: dict[str, Any] = {"image_size": (9, 8), "encoding": "pixels", "progress": False}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many images of many sizes as torch is imported for, each hardly larger than it takes."""
    folder = tmp_path_factory.mktemp("many")
    random = np.random.default_rng(0)
    for number in range(TORCH_SAMPLES):
        place = folder / f"class{number % 2}" / f"{number:05}.bmp"
        place.parent.mkdir(exist_ok=True)
        pixels = random.integers(0, 256, (42 + number % 5, 48 - number % 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place)
    return folder


def pack(source: Path, out: Path, **options: Any) -> PackReport:
    """Pack, into a folder that may not exist."""
    return pack_dataset(source, out, **OPTIONS, **options)


def rows(path: Path) -> np.ndarray[Any, Any]:
    """All images of a pack."""
    with h5py.File(path) as file:
        return np.asarray(file["X_train"][()])


def hide_torch() -> None:
    """Make this process one that has no torch."""
    sys.modules["torch"] = None  # type: ignore[assignment]


def test_many_images_are_resized_by_torch_and_the_file_says_so(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bytes on one thread and on eight; without torch by Pillow, and no pixel is more than one level off."""
    packed = []
    for threads in (1, 8):
        limits = PipelineLimits(readers=threads, max_readers=threads, workers=threads)
        with monkeypatch.context() as patch:
            patch.setattr(execute, "pipeline_limits", lambda *_, limits=limits, **__: limits)
            out = tmp_path / f"{threads}.h5"
            report = pack(many, out)
        assert report.resizer == read_info(out).resizer == "torch"
        assert "resized by torch" in str(report)
        packed.append(out.read_bytes())
    assert packed[0] == packed[1]
    monkeypatch.setitem(sys.modules, "torch", None)
    out = tmp_path / "pillow.h5"
    report = pack(many, out)
    assert report.resizer == read_info(out).resizer == "pillow"
    assert "torch" not in str(report)
    difference = np.abs(rows(out).astype(int) - rows(tmp_path / "1.h5"))
    assert difference.max() == 1


def test_a_fresh_process_stages_and_the_next_one_restores_without_importing_torch(tmp_path: Path, many: Path) -> None:
    """Only what resizes needs it: what is restored is there in less time than the import takes."""
    script = f"""
import sys
from colabstage import stage_dataset
data = stage_dataset({str(many)!r}, local_dir=sys.argv[1], cache_dir={str(tmp_path / "cache")!r}, **{OPTIONS})
print(data.report.origin, data.info.resizer, "torch" in sys.modules)
"""
    said = []
    for machine in ("a", "b"):
        command = [sys.executable, "-c", script, str(tmp_path / machine)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        said.append(done.stdout.split())
    assert said[1] == ["cache", "torch", "False"]
    assert said[0] == ["source", "torch", "True"]


def test_torch_that_was_expected_and_cannot_be_used_is_replaced_by_pillow(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file says that it is Pillow's; unfinished work of Pillow's goes on."""
    monkeypatch.setattr(job, "expects_torch", lambda: True)
    monkeypatch.setattr(job, "can_torch_resize", lambda: False)
    victim = many / "class1" / "01001.bmp"
    whole = victim.read_bytes()
    try:
        victim.write_bytes(b"no image")
        with pytest.raises(DecodeError, match="01001"):
            pack(many, tmp_path / "pack.h5")
    finally:
        victim.write_bytes(whole)
    report = pack(many, tmp_path / "pack.h5")
    assert report.resumed > 0
    assert report.resizer == read_info(tmp_path / "pack.h5").resizer == "pillow"
    assert [path.name for path in tmp_path.iterdir() if "pack.h5" not in path.name] == []


def test_work_of_one_resizer_is_not_continued_by_the_other(
    tmp_path: Path, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With torch an interrupted pack goes on; where torch has gone it begins again, and is Pillow's to the last row."""
    victim = many / "class1" / "01001.bmp"
    whole = victim.read_bytes()
    try:
        victim.write_bytes(b"no image")
        for name in ("torch.h5", "pillow.h5"):
            with pytest.raises(DecodeError, match="01001"):
                pack(many, tmp_path / name)
    finally:
        victim.write_bytes(whole)
    assert pack(many, tmp_path / "torch.h5").resumed > 0
    monkeypatch.setitem(sys.modules, "torch", None)
    again = pack(many, tmp_path / "pillow.h5")
    assert (again.resumed, again.resizer) == (0, "pillow")
    pack(many, tmp_path / "fresh.h5")
    assert (tmp_path / "pillow.h5").read_bytes() == (tmp_path / "fresh.h5").read_bytes()


def test_a_worker_without_torch_refuses(tmp_path: Path, many: Path) -> None:
    """It would write other bytes than the workers beside it, so it says what to do; nothing is at the target."""
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=hide_torch) as executor,
        pytest.raises(MissingDependencyError, match="torch"),
    ):
        pack(many, tmp_path / "set.h5", executor=executor, shards=2)
    assert not list(tmp_path.glob("set*.h5"))


def test_few_images_and_images_as_they_came_are_not_resized_by_torch(tmp_path: Path, many: Path) -> None:
    """Below the number that is worth importing torch it is Pillow; where nothing is resized, the file says nothing."""
    few = tmp_path / "few"
    for name in "ab":
        (few / name).mkdir(parents=True)
        (few / name / "0.bmp").write_bytes((many / "class0" / "00000.bmp").read_bytes())
    assert pack(few, tmp_path / "few.h5").resizer == "pillow"
    kept = tmp_path / "kept.h5"
    assert pack_dataset(few, kept, encoding="encoded", image_size=(9, 8), progress=False).resizer is None
    assert read_info(kept).resizer is None
