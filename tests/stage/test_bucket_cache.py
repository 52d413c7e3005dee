"""A bucket as the cache: its packs and shards have the same guarantees as those in a folder."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from s3fs import S3FileSystem

from colabstage import dataset_h5, stage_dataset
from colabstage.errors import ColabstageError, OptionError, SourceNotFoundError
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.stage.places import BucketPlace
from colabstage.stage.publish import publish
from tests.sources.servers import BucketService
from tests.support.images import make_tree, noise
from tests.support.staged import timeless, use_small_blocks
from tests.support.steps import OneStep

CACHE = "s3://data/cache"
COUNT, LIMIT = 75, 3_400_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images whose pack is larger than the limit."""
    files = {f"{'ab'[n % 2]}/{n}.png": noise(n, size=(128, 128)) for n in range(COUNT)}
    return make_tree(tmp_path_factory.mktemp("many"), files)


def objects(service: BucketService) -> dict[str, bytes]:
    """Everything in the bucket except records of rows, which test_delta checks."""
    there = service.backend.buckets[service.bucket].keys
    return {key: found.value for key, found in there.items() if ".rows" not in key}


def as_objects(key: str, pack: Path) -> dict[str, Any]:
    """A pack and its manifest as objects."""
    return timeless({key: pack.read_bytes(), f"{key}.json": manifest_path(pack).read_bytes()})


def staged(source: Path, local: Path, **options: Any) -> Any:
    return stage_dataset(source, **{"local_dir": local, "cache_dir": CACHE, "progress": False, **options})


@pytest.mark.parametrize("is_same", [False, True], ids=["another version", "the same pack of another state"])
def test_a_manifest_that_comes_before_ours(
    s3: BucketService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """It does not describe the file that is there now, or gives another state of its source: ours replaces it."""
    source = make_tree(tmp_path / "photos", {"a/1.png": 1, "b/2.png": 2})
    pack = stage_dataset(source, local_dir=tmp_path / "one", cache_dir=None, progress=False).path
    manifest = read_manifest(pack)
    assert manifest is not None
    other = replace(manifest, key="other", hashes=manifest.hashes if is_same else ("0" * 16, *manifest.hashes[1:]))
    content = (json.dumps(asdict(other), indent=1, sort_keys=True) + "\n").encode()
    put = S3FileSystem._put_file

    async def put_late(*arguments: Any, **options: Any) -> Any:
        await put(*arguments, **options)
        s3.put("cache/photos.h5.json", content)

    monkeypatch.setattr(S3FileSystem, "_put_file", put_late)
    place: Any = BucketPlace(SimpleNamespace(url=CACHE, label="the bucket"))  # type: ignore[arg-type]
    publish(place, pack, "photos.h5", progress=OneStep())
    assert timeless(objects(s3)) == as_objects("cache/photos.h5", pack)


@pytest.mark.parametrize(
    ("address", "error", "named"),
    [
        ("https://example.org/cache", OptionError, "https://example.org/cache"),
        ("s3:/data/cache", OptionError, "'s3://data/cache' is an address"),
        ("s3://data/cache-*", OptionError, "cache-*"),
        ("kaggle://owner/dataset", OptionError, "kaggle://owner/dataset"),
        ("s3://nowhere/cache", SourceNotFoundError, "'nowhere'"),
    ],
)
def test_what_cannot_be_a_cache_says_so_before_anything_is_written(
    many: Path, s3: BucketService, tmp_path: Path, address: str, error: type[ColabstageError], named: str
) -> None:
    cases: list[dict[str, Any]] = [{}, {"disk_limit": LIMIT, "refresh": True}]
    for options in cases:
        with pytest.raises(error) as refused:
            staged(many, tmp_path / "local", cache_dir=address, **options)
        assert named in str(refused.value)
    assert not [path for path in (tmp_path / "local").rglob("*") if path.is_file()]


def test_a_cache_in_its_source_is_refused(s3: BucketService, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="s3://data"):
        stage_dataset("s3://data", cache_dir=CACHE, local_dir=tmp_path / "local")
    assert objects(s3) == {}


@pytest.mark.torch
def test_a_bucket_that_is_filled_from_a_folder_is_the_same_cache(s3: BucketService, tmp_path: Path) -> None:
    """Its packs are opened in part; for a missing one, the error shows the content of its folder."""
    folder, source = tmp_path / "cache", make_tree(tmp_path / "photos", {"a/1.png": 1, "b/2.png": 2})
    first = staged(source, tmp_path / "one", cache_dir=folder)
    for path in sorted(folder.iterdir(), reverse=True):
        s3.put(f"cache/{path.name}", path.read_bytes())
    shutil.rmtree(folder)
    assert staged(source, tmp_path / "two").report.origin == "cache"
    s3.put("cache/other.h5", b"no pack")

    def opened(address: str) -> Any:
        return dataset_h5(address, disk_limit=LIMIT, local_dir=tmp_path / "part")

    dataset = opened(f"{CACHE}/{first.path.name}")
    assert len(dataset) == 2
    dataset.reader.arrival.close()
    dataset.close()
    for address, named in {
        f"{CACHE}/none.h5": f"{CACHE}/none.h5",
        "s3://nowhere/none.h5": "s3://nowhere/none.h5",
        f"{CACHE}/other.h5": f"{CACHE}/other.h5.json",
    }.items():
        with pytest.raises(SourceNotFoundError, match=named):
            opened(address)
