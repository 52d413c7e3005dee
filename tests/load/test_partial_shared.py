"""A pack behind a share link of Google Drive, opened in part as one on a web server is."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from colabstage.errors import DriveQuotaError, OptionError, SourceAccessError, SourceNotFoundError
from colabstage.h5.manifest import manifest_path
from colabstage.load.dataset import dataset_h5
from colabstage.load.loader import make_loader
from colabstage.load.partial import PartialPack
from colabstage.pack.run import pack_dataset
from tests.support.share_links import DriveShares, SharedItem
from tests.support.staged import disk_sampled, use_small_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.torch

ROWS, SHARDS, LIMIT = 8000, 3, 3_800_000
FOLDER, FILE = "1FolderAbcdefghijklmnopqrstuvwxy0", "1Item{:028d}"
LINK = f"https://drive.google.com/drive/folders/{FOLDER}?usp=sharing"


@pytest.fixture
def drive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DriveShares]:
    """An imitated Google Drive that this process is led to."""
    with DriveShares(tmp_path) as shares:
        for name, value in shares.hosts.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("HOME", str(tmp_path))
        yield shares


def share(drive: DriveShares, files: list[Path], *, without: tuple[str, ...] = ()) -> None:
    """Share a folder with files and their manifests."""
    named = {one.name: one for file in files for one in (file, manifest_path(file)) if one.name not in without}
    items = [SharedItem(FILE.format(n), name, content=named[name].read_bytes()) for n, name in enumerate(sorted(named))]
    drive.add(*items, SharedItem(FOLDER, "photos", kind="folder", entries=tuple(item.id for item in items)))


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three files of small blocks, 7.5 MB together."""
    folder = tmp_path_factory.mktemp("packed")
    x = np.random.default_rng(0).integers(0, 256, (ROWS, 30, 31), dtype=np.uint8)
    np.savez(folder / "data.npz", x_train=x, y_train=np.arange(ROWS))
    with pytest.MonkeyPatch.context() as patch:
        use_small_blocks(patch)
        pack_dataset(folder / "data.npz", folder / "photos.h5", shards=SHARDS, progress=False)
    return sorted(folder.glob("photos-*.h5"))


def test_a_pack_in_a_shared_folder_is_read_in_part(
    drive: DriveShares, shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row comes once in each epoch, the disk never holds more than the limit, and what is here is used again."""
    use_small_blocks(monkeypatch)
    share(drive, shards)
    with disk_sampled(tmp_path / "local") as taken:
        dataset = dataset_h5(LINK, disk_limit=LIMIT, local_dir=tmp_path / "local")
        part = dataset.reader.arrival
        assert isinstance(part, PartialPack)
        whole = dataset_h5([str(path) for path in shards])
        for _ in range(2):
            seen = np.concatenate([y.numpy() for _, y in make_loader(dataset, 64)])
            assert sorted(seen.tolist()) == list(range(ROWS))
        rows = [0, 1, ROWS // 2, ROWS - 1]
        np.testing.assert_array_equal(dataset.read_batch(rows)[0], whole.read_batch(rows)[0])
        copy: dataset_h5 = pickle.loads(pickle.dumps(dataset))
        np.testing.assert_array_equal(copy.read_batch(rows)[1], whole.read_batch(rows)[1])
        assert part.figures["evicted"] > 0
        part.close()
    assert max(taken) <= LIMIT < sum(path.stat().st_size for path in shards) / 1.5
    again = dataset_h5(LINK, disk_limit=LIMIT, local_dir=tmp_path / "local")
    assert again.figures["kept"] > 1_000_000
    again.close()
    whole.close()


def test_a_link_that_leads_to_no_pack_says_what_to_share(
    drive: DriveShares, shards: list[Path], tmp_path: Path
) -> None:
    """One file, a pack without its manifest, several packs, a link among others, a folder that is not public."""
    share(drive, shards[:1], without=(manifest_path(shards[0]).name,))

    def opened(link: str | list[str]) -> None:
        dataset_h5(link, disk_limit=LIMIT, local_dir=tmp_path / "local")

    with pytest.raises(SourceNotFoundError, match=r"NAME\.h5 and NAME\.h5\.json, and give the link to that folder"):
        opened(LINK)
    share(drive, shards[:1])
    with pytest.raises(SourceNotFoundError, match="no packed file with its manifest"):
        opened(f"https://drive.google.com/file/d/{FILE.format(0)}/view")
    with pytest.raises(OptionError, match="a share link in a list"):
        opened([LINK, str(shards[0])])
    other = shards[0].with_name("other.h5")
    other.write_bytes(shards[0].read_bytes())
    manifest_path(other).write_bytes(manifest_path(shards[0]).read_bytes())
    share(drive, [shards[0], other])
    with pytest.raises(OptionError, match=r"holds several packs \(2: other\.h5, photos-00000-of-00003\.h5\)"):
        opened(LINK)
    drive.add(replace(drive.item(FOLDER), state="private"))
    with pytest.raises(SourceAccessError):
        opened(LINK)
    assert not (tmp_path / "local").exists()


def test_a_quota_in_the_middle_of_an_epoch_is_told(
    drive: DriveShares, shards: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that needs what Drive refuses has the error, with what is here; the next call goes on."""
    use_small_blocks(monkeypatch)
    share(drive, shards)
    dataset = dataset_h5(LINK, disk_limit=LIMIT, local_dir=tmp_path / "local")
    batches = iter(make_loader(dataset, 64))
    next(batches)
    refused = [drive.item(FILE.format(number)) for number in (0, 2, 4)]
    drive.add(*(replace(one, state="quota") for one in refused))
    with pytest.raises(DriveQuotaError, match=r"blocks [0-9,]+ are here"):
        list(batches)
    drive.add(*refused)
    assert sum(len(y) for _, y in make_loader(dataset, 64)) == ROWS
    dataset.close()
