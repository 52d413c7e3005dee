"""A bucket as the cache: packs and shards in it have the guarantees that those in a folder have."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from colabstage import list_datasets, plan_stage, purge_datasets, stage_dataset
from colabstage.errors import (
    ColabstageError,
    NotEnoughSpaceError,
    OptionError,
    SourceNotFoundError,
    SourceReadError,
    TargetExistsError,
    TargetNotWritableError,
)
from colabstage.h5.manifest import manifest_path, read_manifest
from colabstage.io.files import json_text
from colabstage.io.progress import Progress
from colabstage.sources.buckets import ObjectStore
from colabstage.sources.parse import ObjectSource
from colabstage.stage.places import BucketPlace
from colabstage.stage.publish import publish
from colabstage.stage.request import read_cache_dir
from tests.support.staged import SMALL_BLOCK, disk_sampled, timeless, use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.sources.servers import BucketService
    from tests.stage.conftest import MakeImages

CACHE = "s3://data/cache"
LIMIT = 4_500_000


@pytest.fixture(autouse=True)
def small_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch, getattr(request, "param", SMALL_BLOCK))


# A service joins parts of 5 MB and more, and each block of a pack of several costs a request.
longer_blocks = pytest.mark.parametrize("small_blocks", [1 << 20], indirect=True, ids=["1 MiB"])


@pytest.fixture
def many(tmp_path: Path, make_images: MakeImages) -> Path:
    """A folder of images whose pack is larger than the limit."""
    return make_images(tmp_path / "many", 120, size=(128, 128))


def place() -> BucketPlace:
    source = read_cache_dir(CACHE)
    assert isinstance(source, ObjectSource)
    return BucketPlace(source)


def objects(service: BucketService) -> dict[str, bytes]:
    """Everything in the bucket but records of rows, which test_delta is about."""
    there = service.backend.buckets[service.bucket].keys
    return {key: found.value for key, found in there.items() if ".rows" not in key}


def as_objects(key: str, pack: Path) -> dict[str, Any]:
    """A pack and its manifest, as they are in the bucket."""
    return timeless({key: pack.read_bytes(), f"{key}.json": manifest_path(pack).read_bytes()})


def staged(source: Path, local: Path, **options: Any) -> Any:
    return stage_dataset(source, **{"local_dir": local, "cache_dir": CACHE, "progress": False, **options})


@pytest.mark.torch
def test_shards_go_to_the_bucket_and_are_read_in_part(many: Path, s3: BucketService, tmp_path: Path) -> None:
    """Nothing but shards and manifests stays there; what was published is not packed again; a machine with room joins
    them; and the set is one dataset to list and to remove."""
    with disk_sampled(tmp_path / "one") as taken:
        data = staged(many, tmp_path / "one", disk_limit=LIMIT)
        assert sum(1 for _ in data.loader("train", 8)) == 15
        data.part.close()
    assert max(taken) <= LIMIT
    count = len([key for key in objects(s3) if key.endswith(".h5")])
    assert count > 3
    assert sorted(objects(s3)) == sorted(
        f"cache/{data.path.stem.rpartition('-00000')[0]}-{number:05}-of-{count:05}.h5{end}"
        for number in range(count)
        for end in ("", ".json")
    )
    # As after a kill: two shards are not there yet.
    for key in sorted(objects(s3))[-4:]:
        s3.remove(key)
    again = staged(many, tmp_path / "two", disk_limit=LIMIT)
    assert again.report.origin == "source"
    assert f"{count - 2} of them were there already" in " ".join(str(again.report).split())
    again.part.close()
    joined = staged(many, tmp_path / "three")
    whole = stage_dataset(many, local_dir=tmp_path / "whole", cache_dir=None, progress=False)
    assert joined.report.origin == "cache"
    assert joined.path.read_bytes() == whole.path.read_bytes()
    (listed,) = (one for one in list_datasets(local_dir=tmp_path / "none", cache_dir=CACHE))
    assert (listed.samples, listed.whole) == ({"train": 120}, True)
    assert purge_datasets([listed]).removed == (listed,)
    assert objects(s3) == {}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each request sends to the bucket."""
    from s3fs import S3FileSystem

    lengths: list[int] = []
    call = S3FileSystem._call_s3

    async def counting(store: Any, method: str, *arguments: Any, **options: Any) -> Any:
        lengths.append(len(options.get("Body") or b""))
        return await call(store, method, *arguments, **options)

    monkeypatch.setattr(S3FileSystem, "_call_s3", counting)
    return lengths


def split_photos(tmp_path: Path, make_images: MakeImages) -> Path:
    """A folder whose pack has 8 MB, and the images of its second split at the end."""
    for split, count in (("train", 34), ("test", 8)):
        make_images(tmp_path / "photos" / split, count, size=(256, 256))
    return tmp_path / "photos"


@longer_blocks
def test_only_blocks_that_the_earlier_version_has_not_are_sent(
    s3: BucketService, tmp_path: Path, make_images: MakeImages, image_bytes: Callable[..., bytes], sent: list[int]
) -> None:
    """Also by the first call after a kill at any step of that."""
    photos = split_photos(tmp_path, make_images)
    first = staged(photos, tmp_path / "one")
    size, key = first.path.stat().st_size, f"cache/{first.path.name}"
    first.wait_published()
    assert sum(sent) > size
    for number in range(2):
        min((photos / "test").rglob("*.png")).write_bytes(image_bytes(99 + number, size=(256, 256)))
        sent.clear()
        again = staged(photos, tmp_path / "one")
        again.wait_published()
        assert timeless(objects(s3)) == as_objects(key, again.path)
        assert sum(sent) < 0.4 * size
    assert staged(photos, tmp_path / "two").report.origin == "cache"


# What ends an upload at its parts ends it at their joining: the last one is in every run.
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("upload_part_copy", marks=pytest.mark.long),
        pytest.param("upload_part", marks=pytest.mark.long),
        "complete_multipart_upload",
        "damaged",
        "after",
    ],
)
@longer_blocks
def test_a_version_that_cannot_be_put_together_is_sent_in_full(
    s3: BucketService,
    tmp_path: Path,
    make_images: MakeImages,
    image_bytes: Callable[..., bytes],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    """Until it is there the earlier one stays, and nothing of an upload is left behind."""
    photos = split_photos(tmp_path, make_images)
    first = staged(photos, tmp_path / "one")
    first.wait_published()
    key, before = f"cache/{first.path.name}", objects(s3)
    min((photos / "test").rglob("*.png")).write_bytes(image_bytes(99, size=(256, 256)))
    call, seen = ObjectStore.call, list[dict[str, bytes]]()

    def failing(store: ObjectStore, path: str, method: str, arguments: Any) -> Any:
        if method == step:
            seen.append({name: value for name, value in objects(s3).items() if not name.endswith(".unfinished")})
            raise TargetNotWritableError(method)
        if step == "damaged" and method == "upload_part_copy":
            start, _, end = arguments["CopySourceRange"].removeprefix("bytes=").partition("-")
            arguments = {**arguments, "CopySourceRange": f"bytes={int(start) + 1}-{int(end) + 1}"}
        found = call(store, path, method, arguments)
        if step == "after" and method == "complete_multipart_upload":
            raise SourceReadError(method)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "call", failing)
        again = staged(photos, tmp_path / "one")
        with contextlib.suppress(ColabstageError):
            again.wait_published()
    if step == "after":
        (tmp_path / "one").rename(tmp_path / "old")
        again = staged(photos, tmp_path / "one")
        again.wait_published()
    assert all(one == before for one in seen)
    assert timeless(objects(s3)) == as_objects(key, again.path)
    assert not s3.backend.buckets[s3.bucket].multiparts


@pytest.mark.parametrize("theirs", ["another version", "the same pack of another state"])
def test_a_manifest_that_comes_before_ours(
    photos: Path, s3: BucketService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: str
) -> None:
    """Another version's stays, and this one is not cached; of the same bytes, the last state that they were made of
    counts."""
    pack = stage_dataset(photos, local_dir=tmp_path / "one", cache_dir=None, progress=False).path
    manifest = read_manifest(pack)
    assert manifest is not None
    other = replace(manifest, key="other")
    if theirs == "another version":
        other = replace(other, hashes=("0" * 16, *other.hashes[1:]))
    content = json_text(asdict(other)).encode()
    put = ObjectStore.put

    def put_late(store: ObjectStore, *arguments: Any, **options: Any) -> None:
        put(store, *arguments, **options)
        s3.put("cache/photos.h5.json", content)

    monkeypatch.setattr(ObjectStore, "put", put_late)
    if theirs == "another version":
        with pytest.raises(TargetExistsError, match=r"photos\.h5\.json"):
            publish(place(), pack, "photos.h5", progress=Progress())
        assert objects(s3)["cache/photos.h5.json"] == content
    else:
        publish(place(), pack, "photos.h5", progress=Progress())
        assert timeless(objects(s3)) == as_objects("cache/photos.h5", pack)


def test_what_cannot_be_a_cache_says_so_before_anything_is_written(
    photos: Path, many: Path, s3: BucketService, tmp_path: Path
) -> None:
    for address, words in {
        "https://example.org/cache": "not a place that packs can be written to",
        "s3:/data/cache": "not a place that packs can be written to",
        "s3://data/cache-*": "has a pattern",
        "kaggle://owner/dataset": "not a place that packs can be written to",
    }.items():
        with pytest.raises(OptionError, match=words):
            staged(photos, tmp_path / "local", cache_dir=address)
    with pytest.raises(SourceNotFoundError, match="'nowhere'"):
        staged(photos, tmp_path / "local", cache_dir="s3://nowhere/cache")
    with pytest.raises(SourceNotFoundError, match="'nowhere'"):
        staged(many, tmp_path / "local", cache_dir="s3://nowhere/cache", disk_limit=LIMIT, refresh=True)
    with pytest.raises(OptionError, match="s3://data"):
        stage_dataset("s3://data", cache_dir=CACHE, local_dir=tmp_path / "local")
    with pytest.raises(NotEnoughSpaceError, match=r's3://bucket/cache"'):
        staged(many, tmp_path / "local", cache_dir=None, disk_limit=LIMIT)
    assert not [path for path in (tmp_path / "local").rglob("*") if path.is_file()]
    plan = plan_stage(many, cache_dir=CACHE, local_dir=tmp_path / "local", disk_limit=LIMIT)
    assert f"goes to the cache in '{CACHE}'" in str(plan)
    assert objects(s3) == {}


@pytest.mark.torch
def test_a_bucket_that_is_filled_from_a_folder_is_the_same_cache(
    photos: Path, s3: BucketService, tmp_path: Path
) -> None:
    from colabstage import dataset_h5

    folder = tmp_path / "cache"
    first = staged(photos, tmp_path / "one", cache_dir=folder)
    for path in sorted(folder.iterdir(), reverse=True):
        s3.put(f"cache/{path.name}", path.read_bytes())
    shutil.rmtree(folder)
    assert staged(photos, tmp_path / "two").report.origin == "cache"
    dataset = dataset_h5(f"{CACHE}/{first.path.name}", disk_limit=LIMIT, local_dir=tmp_path / "part")
    assert len(dataset) == 20
    dataset.close()


@pytest.mark.torch
def test_a_pack_that_is_not_in_the_bucket_is_what_is_missing(s3: BucketService, tmp_path: Path) -> None:
    from colabstage import dataset_h5

    s3.put("packs/other.h5", b"no pack")
    for address, said in {
        "s3://data/packs/none.h5": r"nothing at 's3://data/packs/none.h5'.*In its folder are: other.h5",
        "s3://nowhere/none.h5": "nothing at 's3://nowhere/none.h5'.*bucket does not exist",
        "s3://data/packs/other.h5": "'s3://data/packs/other.h5.json'",
    }.items():
        with pytest.raises(SourceNotFoundError, match=said):
            dataset_h5(address, disk_limit=LIMIT, local_dir=tmp_path)
