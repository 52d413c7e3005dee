"""Without isal, simplejpeg and gdown, as after an installation without dependencies, everything works and says so."""

import gzip
import json
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from PIL import Image

from colabstage import stage_dataset
from colabstage.errors import MissingDependencyError
from tests.nurseries import Nurseries

ROOT = Path(__file__).resolve().parents[2]
# Stages each source in one script's process, and prints the outcome.
STAGE = """
import json, sys, warnings
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None
import colabstage as cs
found = []
for number, (source, options) in enumerate(json.loads(sys.argv[3])):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        places = {"cache_dir": None, "local_dir": f"{sys.argv[2]}-{number}", "progress": False}
        data = cs.stage_dataset(source, **places, **options)
        dataset = cs.dataset_h5(data.path)
        x, y = dataset.read_batch(range(len(dataset)))
    rows = [float(one.mean()) for one in x]
    found.append({"rows": rows, "labels": y.tolist(), "said": [str(one.message).split()[0] for one in said]})
print(json.dumps(found))
"""
ACCELERATORS = ["isal", "simplejpeg", "gdown"]


def stage(
    place: Path, cases: list[tuple[str, dict[str, Any]]], missing: list[str], nurseries: Nurseries
) -> list[dict[str, Any]]:
    """Stage in a process that cannot import some packages."""
    script = place.with_suffix(".py")
    script.write_text(STAGE, encoding="utf-8")
    arguments: list[str | Path] = [script, json.dumps(missing), place, json.dumps(cases)]
    found: list[dict[str, Any]] = json.loads(nurseries.run_script("torch", arguments, {"PYTHONPATH": str(ROOT)}))
    return found


def photos(folder: Path) -> Path:
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


@pytest.mark.torch
def test_what_is_staged_without_them_is_the_same(tmp_path: Path, nurseries: Nurseries) -> None:
    """Each missing package is named once, by the first step that needs it."""
    folder = photos(tmp_path / "photos")
    sources: list[tuple[Path, dict[str, Any]]] = [
        (_zip(folder), {"encoding": "jpeg:90", "image_size": [16, 24]}),
        (folder, {"image_size": [16, 16]}),
        (_tar(folder), {"encoding": "encoded"}),
        (_zip(folder), {}),
    ]
    cases = [(str(source), options) for source, options in sources]
    fast = stage(tmp_path / "fast", cases, [], nurseries)
    slow = stage(tmp_path / "slow", cases, ACCELERATORS, nurseries)
    for one, other in zip(fast, slow, strict=True):
        assert one["labels"] == other["labels"]
        np.testing.assert_allclose(other["rows"], one["rows"], atol=1)
    assert {*ACCELERATORS}.isdisjoint(word for one in fast for word in one["said"])
    said = [word for one in slow for word in one["said"] if word in ACCELERATORS]
    assert sorted(said) == ["isal", "simplejpeg"]


@pytest.mark.parametrize("kind", ["tar.zst", "zip"])
def test_without_a_package_for_zstandard_the_error_has_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Python before 3.14 has no module for it, and few archives need it."""
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


@pytest.mark.parametrize("missing", [[], ["isal", "simplejpeg"]], ids=["none", "both"])
def test_doctor_names_those_that_are_missing(missing: list[str]) -> None:
    """With the line that installs them; nothing is said if none is missing."""
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
