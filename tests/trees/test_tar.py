"""Tars as trees: equal to what tarfile reads; cut or damaged ones never pass for complete."""

import gzip
import io
import random
import tarfile
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.errors import CorruptArchiveError
from colabstage.trees.open import open_archive
from tests.support.archives import RecordingBytes, read_all, tar_bytes
from tests.trees.test_contract import NAME, PACKERS

_FILES = {
    "train/cat/1.jpg": b"first " * 500,
    "train/dog/" + "long" * 60 + ".jpg": random.Random(1).randbytes(3000),
    "test/cat/ü 3.jpg": b"",
    "/".join(["deep" * 10] * 8) + "/4.jpg": b"4" * 512,
    "readme.txt": b"r",
}


@given(
    files=st.dictionaries(
        NAME, st.tuples(st.binary(max_size=700), st.integers(0, 9_000_000_000)), min_size=1, max_size=6
    ),
    form=st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
)
def test_every_tar_reads_as_tarfile_reads_it(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, tuple[bytes, int]], form: int
) -> None:
    """Names, contents, times and offsets agree with the standard library's, long and foreign names included."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, (content, mtime) in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), mtime
            archive.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    spool = tmp_path_factory.getbasetemp()
    with tarfile.open(fileobj=buffer) as oracle, open_archive(RecordingBytes(buffer.getvalue()), spool=spool) as tree:
        assert {entry.name: (tree.read(entry), entry.mtime_ns, entry.position) for entry in tree.entries} == {
            member.name: (file.read(), int(member.mtime) * 10**9, member.offset_data)
            for member in oracle.getmembers()
            if (file := oracle.extractfile(member)) is not None
        }


HUGE_TIMES = [{"mtime": mtime} for mtime in ("1e999980", "-1e999980", "9" * 5000, "1e400")]


@pytest.mark.parametrize("keys", [*HUGE_TIMES, {f"key{number}": "v" for number in range(10_000)}], ids=range(5))
def test_a_few_bytes_of_a_header_do_not_freeze_the_process(tmp_path: Path, keys: dict[str, str]) -> None:
    """A time that would take hours to print is ignored; unused keys are not carried from member to member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers=keys) as archive:
        for number in range(1_500):
            archive.addfile(tarfile.TarInfo(f"f{number}"))
    began = time.process_time()
    with open_archive(RecordingBytes(buffer.getvalue()), spool=tmp_path) as tree:
        assert tree.entries.mtimes_ns.tolist() == [0] * 1_500
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        (b" 1234 ", 0o1234), (b"1234567     ", 0o1234567), (b"12x4", None), (b"\x80" + b"\0" * 10 + b"\x05", 5),
        (b"\xff" * 12, -1),
    ],
)  # fmt: skip
def test_a_number_is_read_as_gnu_tar_reads_it(tmp_path: Path, field: bytes, seconds: int | None) -> None:
    """With NULs and blanks around it; the expected times are those listed by GNU tar 1.34."""
    raw = bytearray(tar_bytes({"f": b""}, form=tarfile.USTAR_FORMAT))
    raw[136:148] = field.ljust(12, b"\0")
    raw[148:156] = b" " * 8
    raw[148:156] = b"%06o\0 " % sum(raw[:512])
    if seconds is None:
        with pytest.raises(CorruptArchiveError):
            open_archive(RecordingBytes(bytes(raw)), spool=tmp_path)
        return
    with open_archive(RecordingBytes(bytes(raw)), spool=tmp_path) as tree:
        assert tree.entries[0].mtime_ns == seconds * 10**9


@pytest.mark.parametrize("kind", PACKERS)
def test_what_follows_a_compressed_stream_is_another_one(tmp_path: Path, kind: str) -> None:
    """A cut of the last is noticed."""
    pack = PACKERS[kind]
    content = tar_bytes(_FILES)
    whole = pack(content)
    joined = pack(content[:4000]) + pack(content[4000:])
    for good in (whole, joined):
        with open_archive(RecordingBytes(good), spool=tmp_path) as tree:
            assert read_all(tree) == _FILES
    for cut in range(1, 60, 3):
        with pytest.raises(CorruptArchiveError):
            open_archive(RecordingBytes(joined[:-cut]), spool=tmp_path)


def test_the_content_of_a_compressed_file_is_held_once(tmp_path: Path) -> None:
    """Reading it takes as much memory as it has bytes, not twice that."""
    with open_archive(RecordingBytes(gzip.compress(bytes(16_000_000), 1)), spool=tmp_path) as tree:
        tracemalloc.start()
        try:
            assert len(tree.read(tree.entries[0])) == 16_000_000
            assert tracemalloc.get_traced_memory()[1] < 19_000_000
        finally:
            tracemalloc.stop()
