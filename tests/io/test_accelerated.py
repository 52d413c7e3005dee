"""Without isal, simplejpeg and gdown, as after an installation without dependencies, everything works and says so."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zstandard
from PIL import Image

from colabstage import stage_dataset
from colabstage.errors import MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
STAGE = """
import json, sys, warnings
from pathlib import Path
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
import colabstage as cs
from colabstage.load.reading.reader import SplitReader
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    places = {"cache_dir": None, "local_dir": sys.argv[3], "progress": False}
    data = cs.stage_dataset(sys.argv[2], **places, **json.loads(sys.argv[4]))
    x = SplitReader(data.path).read_x(range(data.splits["train"]))
print(json.dumps({
    "rows": [float(one.mean()) for one in x], "labels": SplitReader(data.path).read_y(range(len(x))).tolist(),
    "said": [str(one.message).split()[0] for one in said],
}))
"""
ACCELERATORS = ["isal", "simplejpeg", "gdown"]


def stage(place: Path, source: Path, missing: list[str], **options: Any) -> dict[str, Any]:
    """Stage in a process of its own that cannot import some packages."""
    command = [sys.executable, "-c", textwrap.dedent(STAGE), json.dumps(missing), str(source), str(place)]
    done = subprocess.run(
        [*command, json.dumps(options)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def photos(folder: Path) -> Path:
    """Two classes of JPEGs, each with one shade."""
    for number in range(12):
        place = folder / "ab"[number % 2] / f"{number}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (48, 32), (20 * number, 200 - 10 * number, 90)).save(place, quality=95)
    return folder


def _zip(folder: Path) -> Path:
    with zipfile.ZipFile(folder.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*.jpg")):
            file.write(path, path.relative_to(folder))
        # More than is unpacked at once.
        file.writestr("notes.bin", np.random.default_rng(0).bytes(300_000) + bytes(3_000_000))
    return folder.with_suffix(".zip")


def _tar(folder: Path) -> Path:
    with tarfile.open(folder.with_suffix(".tar.gz"), "w:gz") as file:
        file.add(folder, ".")
    return folder.with_suffix(".tar.gz")


def _chunks(folder: Path) -> Path:
    with h5py.File(folder.with_suffix(".h5"), "w") as file:
        x = np.arange(40 * 64, dtype=np.uint8).reshape(40, 8, 8)
        file.create_dataset("X_train", data=x, chunks=(8, 8, 8), compression="gzip", fletcher32=True)
        file["Y_train"] = np.arange(40) % 4
    return folder.with_suffix(".h5")


@pytest.mark.parametrize(
    ("make", "options", "package"),
    [
        (_zip, {}, "isal"),
        (_zip, {"encoding": "jpeg:90", "image_size": [16, 24]}, "simplejpeg"),
        (_tar, {"encoding": "encoded"}, "simplejpeg"),
        (lambda folder: folder, {"image_size": [16, 16]}, "simplejpeg"),
    ],
    ids=["zip", "jpeg", "tar.gz", "folder"],
)
def test_what_is_staged_without_them_is_the_same(tmp_path: Path, make: Any, options: Any, package: str) -> None:
    source = make(photos(tmp_path / "photos"))
    fast = stage(tmp_path / "fast", source, [], **options)
    slow = stage(tmp_path / "slow", source, ACCELERATORS, **options)
    assert not {*fast["said"]} & {*ACCELERATORS}
    assert slow["said"].count(package) == 1
    assert max(slow["said"].count(one) for one in ACCELERATORS) == 1
    assert slow["labels"] == fast["labels"]
    np.testing.assert_allclose(slow["rows"], fast["rows"], atol=1)


@pytest.mark.parametrize("kind", ["tar.zst", "zip"])
def test_without_a_package_for_zstandard_the_error_has_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Python before 3.14 has none of its own, and few archives need it."""
    packed = zstandard.ZstdCompressor().compress
    source = tmp_path / f"photos.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(source, "w") as file:
            file.write(photos(tmp_path / "photos") / "a/0.jpg", "a/0.jpg")
        content = bytearray(source.read_bytes())
        for place in (content.find(b"PK\3\4") + 8, content.find(b"PK\1\2") + 10):
            content[place : place + 2] = (93).to_bytes(2, "little")
        source.write_bytes(content)
    else:
        source.write_bytes(packed(gzip.decompress(_tar(photos(tmp_path / "photos")).read_bytes())))
    for module in ("compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependencyError, match=r"pip install backports\.zstd"):
        stage_dataset(source, local_dir=tmp_path / "here", cache_dir=None, progress=False)


@pytest.mark.parametrize("missing", [[], ["isal"], ["isal", "simplejpeg"]])
def test_doctor_names_those_that_are_missing(missing: list[str]) -> None:
    """With the line that installs them; nothing is said where all are there."""
    code = """
    import importlib.metadata as metadata, sys
    version = metadata.version
    def without(name):
        if name in sys.argv[1:]: raise metadata.PackageNotFoundError(name)
        return version(name)
    metadata.version = without
    sys.modules.update(dict.fromkeys(sys.argv[1:]))
    import colabstage as cs
    print(" ".join(str(cs.doctor()).split()))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), *missing]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT).stdout
    assert all(f"ithout {name}, " in said for name in missing)
    assert (f"pip install {' '.join(missing)}" in said) == bool(missing)
    assert ("ithout " in said) == bool(missing)
