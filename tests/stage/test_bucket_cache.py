"""A bucket as the cache: its packs and shards have the same guarantees as those in a folder."""

from pathlib import Path
from typing import Any

import pytest

from colabstage import stage_dataset
from colabstage.errors import ColabstageError, OptionError, SourceNotFoundError
from tests.sources.servers import BucketService
from tests.support.images import make_tree, noise
from tests.support.staged import use_small_blocks

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


def staged(source: Path, local: Path, **options: Any) -> Any:
    return stage_dataset(source, **{"local_dir": local, "cache_dir": CACHE, "progress": False, **options})


@pytest.mark.slow
@pytest.mark.torch
def test_shards_go_to_the_bucket_and_are_read_in_part_or_joined(many: Path, s3: BucketService, tmp_path: Path) -> None:
    data = staged(many, tmp_path / "one", disk_limit=LIMIT)
    assert sum(len(y) for _, y in data.loader("train", 8)) == COUNT
    data.part.close()
    assert len([key for key in objects(s3) if key.endswith(".h5")]) > 3
    joined = staged(many, tmp_path / "two")
    whole = stage_dataset(many, local_dir=tmp_path / "whole", cache_dir=None, progress=False)
    assert (joined.report.origin, joined.path.read_bytes()) == ("cache", whole.path.read_bytes())


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
