"""Without isal, simplejpeg and gdown, as after an installation without dependencies, everything works and says so."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from colabstage import stage_dataset
from colabstage.errors import MissingDependencyError
from tests.images.files import encode
from tests.nurseries import Nurseries
from tests.support.archives import write_archive, zstd_bytes
from tests.support.made_files import write_files
from tests.trees.test_zip import Member, write_zip

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


# Two classes of JPEGs, each with one shade.
PHOTOS = {
    f"{'ab'[n % 2]}/{n}.jpg": encode(Image.new("RGB", (48, 32), (20 * n, 200 - 10 * n, 90)), "JPEG", quality=95)
    for n in range(12)
}


@pytest.mark.torch
def test_what_is_staged_without_them_is_the_same(tmp_path: Path, nurseries: Nurseries) -> None:
    """Each missing package is named once, by the first step that needs it."""
    # More than is unpacked at once.
    more = {"notes.bin": np.random.default_rng(0).bytes(300_000) + bytes(3_000_000)}
    zipped = write_archive(tmp_path / "photos.zip", PHOTOS | more)
    sources: list[tuple[Path, dict[str, Any]]] = [
        (zipped, {"encoding": "jpeg:90", "image_size": [16, 24]}),
        (write_files(tmp_path / "photos", PHOTOS), {"image_size": [16, 16]}),
        (write_archive(tmp_path / "photos.tar.gz", PHOTOS), {"encoding": "encoded"}),
        (zipped, {}),
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
    source = tmp_path / f"photos.{kind}"
    if kind == "zip":
        write_zip(source, [Member(b"a/0.jpg", zstd_bytes(PHOTOS["a/0.jpg"]), 93, size=len(PHOTOS["a/0.jpg"]))])
    else:
        write_archive(source, PHOTOS)
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
