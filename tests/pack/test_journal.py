"""What a journal remembers of an interrupted run, and what it must not believe."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colabstage.io.workspace import temp_beside
from colabstage.pack.journal import BLOCK_SAMPLES, PackJournal

N = 5 * BLOCK_SAMPLES + 3


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder of a packer's own, as journals lie in."""
    folder = temp_beside(tmp_path / "pack")
    folder.mkdir()
    return folder


def _open(path: Path, fingerprint: str = "one", samples: int = N) -> PackJournal:
    return PackJournal(path, fingerprint=fingerprint, samples=samples, stamp=str)


def _finish(journal: PackJournal, *blocks: int) -> None:
    for block in blocks:
        for position in range(block * BLOCK_SAMPLES, min(N, (block + 1) * BLOCK_SAMPLES)):
            journal.finish(position)


def test_finished_blocks_are_remembered_and_others_are_not(workspace: Path) -> None:
    """A sample counts once its whole block is in place; a begun block is done again."""
    with _open(workspace / "journal") as journal:
        assert not journal.resumed
        _finish(journal, 1, 5)
        journal.finish(0)
    with _open(workspace / "journal") as journal:
        assert journal.resumed
        assert journal.finished_samples == BLOCK_SAMPLES + 3
        finished = {position for position in range(N) if journal.is_finished(position)}
        assert set(journal.unfinished()) == set(range(N)) - finished
    assert finished == set(range(BLOCK_SAMPLES, 2 * BLOCK_SAMPLES)) | set(range(5 * BLOCK_SAMPLES, N))


@given(order=st.permutations(range(N)), count=st.integers(0, N), start=st.integers(0, 5))
def test_what_is_told_to_be_kept_is_what_the_next_run_finds(order: list[int], count: int, start: int) -> None:
    """In whichever order samples are finished, and wherever that ends, an earlier run's blocks included."""
    with tempfile.TemporaryDirectory() as folder:
        place = temp_beside(Path(folder) / "pack")
        place.mkdir()
        with _open(place / "journal") as journal:
            _finish(journal, *range(start))
        with _open(place / "journal") as journal:
            kept = set(range(N)) - set(journal.unfinished())
            for position in [one for one in order if one not in kept][:count]:
                kept.update(journal.finish(position))
        with _open(place / "journal") as journal:
            assert kept == set(range(N)) - set(journal.unfinished())


def test_several_interruptions_add_up(workspace: Path) -> None:
    """Each run goes on where the one before it was, until everything is finished."""
    for block in range(6):
        with _open(workspace / "journal") as journal:
            assert journal.finished_samples == min(N, block * BLOCK_SAMPLES)
            _finish(journal, block)
    with _open(workspace / "journal") as journal:
        assert journal.finished_samples == N


@pytest.mark.parametrize(("fingerprint", "samples"), [("two", N), ("one", N + 1)])
def test_the_journal_of_another_work_counts_for_nothing(workspace: Path, fingerprint: str, samples: int) -> None:
    """Another source, other options or another number of samples begin anew, for good."""
    with _open(workspace / "journal") as journal:
        _finish(journal, 0, 1)
    with _open(workspace / "journal", fingerprint, samples) as journal:
        assert not journal.resumed
    with _open(workspace / "journal") as journal:
        assert not journal.resumed


def test_the_journal_of_another_boot_counts_for_nothing(workspace: Path) -> None:
    """After a reboot the bytes that the journal speaks of may never have reached the disk."""
    path = workspace / "journal"
    with _open(path) as journal:
        _finish(journal, 0, 1)
    lines = path.read_text().splitlines()
    head = json.loads(lines[0])
    head["world"] = "00000000"
    path.write_text("\n".join([json.dumps(head), *lines[1:]]) + "\n")
    with _open(path) as journal:
        assert not journal.resumed


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_line_cut_off_by_a_kill_costs_its_block_only_and_only_once(workspace: Path, cut: int) -> None:
    """The torn line is dropped, and what the next run appends is not glued to it."""
    path = workspace / "journal"
    with _open(path) as journal:
        _finish(journal, 0, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    remembered = 3 - whole[-cut:].count(b"\n")
    with _open(path) as journal:
        assert journal.finished_samples == remembered * BLOCK_SAMPLES
        _finish(journal, 3)
    with _open(path) as journal:
        assert journal.finished_samples == (remembered + 1) * BLOCK_SAMPLES


@pytest.mark.parametrize("content", [b"", b"\n", b"no journal\n", b"\0" * 400, b"[1]\n", b'{"block": 1}\n'])
def test_what_is_no_journal_counts_for_nothing(workspace: Path, content: bytes) -> None:
    """Whatever lies there, the run begins anew."""
    (workspace / "journal").write_bytes(content)
    with _open(workspace / "journal") as journal:
        assert not journal.resumed
        _finish(journal, 2)
    with _open(workspace / "journal") as journal:
        assert journal.finished_samples == BLOCK_SAMPLES


def test_reasons_of_left_out_samples_are_remembered_with_their_block(workspace: Path) -> None:
    """A reason from a block that was not finished is forgotten: the sample is tried again, and may be whole now."""
    with _open(workspace / "journal") as journal:
        journal.finish(0, skipped="a/1.jpg: cut off")
        for position in range(1, BLOCK_SAMPLES):
            journal.finish(position)
        journal.finish(BLOCK_SAMPLES, skipped="a/9.jpg: cut off")
    with _open(workspace / "journal") as journal:
        assert journal.skipped == {0: "a/1.jpg: cut off"}
        _finish(journal, 1)
    with _open(workspace / "journal") as journal:
        assert journal.skipped == {0: "a/1.jpg: cut off"}
        assert journal.finished_samples == 2 * BLOCK_SAMPLES


def test_forgetting_begins_anew(workspace: Path) -> None:
    """A journal whose file is gone is forgotten, also by the next run."""
    with _open(workspace / "journal") as journal:
        _finish(journal, 0)
    with _open(workspace / "journal") as journal:
        journal.forget()
        assert journal.finished_samples == 0
        _finish(journal, 4)
    with _open(workspace / "journal") as journal:
        assert journal.finished_samples == BLOCK_SAMPLES
