"""Every command: what it prints, and its exit code."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import pytest

from colabstage import __version__
from tests.cli.conftest import COMMAND, Run, practice_environment, reason, result, write_images


def damage(path: Path, offset: int) -> None:
    """Change one byte of a file like a bad disk, without changing its time."""
    found = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 255]))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def blocks_finished(folder: Path) -> int:
    """Return how many blocks of samples the unfinished pack in a folder has completed."""
    return sum(path.read_text().count('"block"') for path in folder.glob("**/journal"))


def test_help_has_examples_and_loads_nothing_heavy() -> None:
    """A command's help shows how to use it, without loading what the command needs."""
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('loaded', *({'torch', 'h5py', 'numpy', 'PIL'} & {*sys.modules})))\n"
        "sys.argv = ['colabstage', 'stage', '--help']\n"
        "import runpy\n"
        "runpy.run_module('colabstage', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "colabstage stage /content/drive/MyDrive/kitti.zip --image-size 256x256" in done.stdout
    assert done.stdout.splitlines()[-1] == "loaded"


def test_nothing_asked_is_a_wrong_argument(run: Run) -> None:
    """Without a command it lists the commands, and exits with 2."""
    done = run()
    assert done.returncode == 2
    assert all(name in done.stdout + done.stderr for name in ("stage", "plan", "pack", "info", "verify"))
    assert run("--version").stdout == f"colabstage {__version__}\n"


def test_stage_reports_its_steps_and_where_the_pack_is(run: Run, photos: Path, tmp_path: Path) -> None:
    """The steps with their times, then the file; no bar without a terminal."""
    done = run("stage", photos, "--local-dir", "here", "--cache-dir", "none")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Staged from the source" in done.stdout
    assert "pack" in done.stdout
    (pack,) = (tmp_path / "here").rglob("*.h5")
    assert str(pack) in done.stdout


def test_stage_hands_every_option_on(run: Run, photos: Path, tmp_path: Path) -> None:
    """Each option reaches the pack, the folders and the cache."""
    (photos / "cat" / "000.png").write_bytes(b"no image")
    arguments = (
        *("--image-size", "8x6", "--color-mode", "grayscale", "--resize", "pad", "--encoding", "pixels"),
        *("--splits", "train=0.6,test=0.4", "--seed", "7", "--on-error", "skip", "--keep", "both"),
        *("--local-dir", "here", "--cache-dir", "lasting", "--layout", "image_folder"),
    )
    staged = result(run("stage", "photos", *arguments, "--json"))
    assert sum(staged["splits"].values()) == 9
    assert set(staged["splits"]) == {"train", "test"}
    assert (staged["classes"], staged["report"]["origin"]) == (["cat", "dog"], "source")
    assert len(staged["report"]["skipped"]) == 1
    assert len(list(Path(staged["files"]).rglob("*.png"))) == 10
    assert (tmp_path / "lasting" / Path(staged["path"]).name).is_file()
    with h5py.File(staged["path"]) as file:
        assert file["X_train"].shape[1:] == (8, 6, 1)
        options = json.loads(str(file.attrs["options"]))
    assert (options["seed"], options["image"]["resize"], options["layout"]) == (7, "pad", "image_folder")


@pytest.mark.slow
def test_stage_reuses_refreshes_and_verifies(run: Run, photos: Path) -> None:
    """The second call reuses local data, `--refresh` does not, and `--verify full` finds hidden damage."""
    here = ("--local-dir", "here", "--cache-dir", "none", "--json")
    first = result(run("stage", photos, *here))
    assert result(run("stage", photos, *here))["report"]["origin"] == "local"
    assert result(run("stage", photos, *here, "--refresh"))["report"]["origin"] == "source"
    damage(Path(first["path"]), 5000)
    again = result(run("stage", photos, *here, "--verify", "full"))
    assert again["report"]["origin"] == "source"
    assert any("damaged" in note for note in again["report"]["notes"])


def test_plan_says_what_stage_would_do_and_does_nothing(run: Run, photos: Path, tmp_path: Path) -> None:
    """The plan has samples and sizes, and leaves no file."""
    before = sorted(tmp_path.rglob("*"))
    planned = result(run("plan", "photos", "--image-size", "8", "--local-dir", "here", "--cache-dir", "none", "--json"))
    assert (planned["action"], planned["samples"], planned["pack_bytes"]) == ("stage", {"train": 10}, 10 * 8 * 8 * 3)
    text = run("plan", "photos", "--local-dir", "here", "--cache-dir", "none")
    assert text.returncode == 0
    assert "would be read from its source" in text.stdout
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_pack_makes_the_file_that_was_asked_for(run: Run, photos: Path, tmp_path: Path) -> None:
    """It packs, reports the amount, and does not replace a file unless told to."""
    done = run("pack", "photos", "a.h5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "10 images" in done.stdout
    before = (tmp_path / "a.h5").read_bytes()
    assert "--overwrite" in reason(run("pack", "photos", "a.h5", "--image-size", "4,4"), 1)
    assert (tmp_path / "a.h5").read_bytes() == before
    packed = result(run("pack", "photos", "a.h5", "--image-size", "4,4", "--overwrite", "--json"))
    assert (packed["samples"], packed["encoding"], packed["path"]) == ({"train": 10}, "pixels", "a.h5")


@pytest.mark.slow
def test_pack_writes_shards_and_adds_to_what_is_there(run: Run, photos: Path, tmp_path: Path) -> None:
    """Shards have their numbers; appended files go beside the pack; if the target is missing, it says so."""
    packed = result(run("pack", "photos", "set.h5", "--shards", "2", "--encoding", "jpeg:80", "--json"))
    assert (packed["path"], packed["samples"]) == ("set-?????-of-00002.h5", {"train": 10})
    assert len(packed["files"]) == 2
    added = result(run("pack", "photos", "--append-to", "set.h5", "--json"))
    assert (added["path"], added["encoding"]) == ("set-append-00001.h5", "jpeg:80")
    assert "--append-to PACK" in reason(run("pack", "photos"), 2)
    assert "shards=11" in reason(run("pack", "photos", "b.h5", "--shards", "11"), 2)


def test_info_shows_what_a_pack_holds(run: Run, photos: Path, tmp_path: Path) -> None:
    """Splits, rows, shapes, dtypes, classes, encoding with its reason, size, manifest and what was left out."""
    (photos / "dog" / "004.png").write_bytes(b"no image")
    assert run("pack", "photos", "a.h5", "--on-error", "skip").returncode == 0
    text = run("info", "a.h5")
    assert (text.returncode, text.stderr) == (0, "")
    for expected in ("X_train", "12 x 12 x 3", "uint8", "2: cat, dog", "pixels, because", "agrees", "dog/004.png"):
        assert expected in text.stdout
    assert "\x1b" not in text.stdout
    told = result(run("info", "a.h5", "--json"))
    x = told["splits"]["train"]["x"]
    assert (x["name"], x["shape"], x["dtype"], x["nbytes"]) == ("X_train", [12, 12, 3], "uint8", 9 * 12 * 12 * 3)
    assert (told["format_version"], told["manifest"]["state"], told["classes"]) == (1, "agrees", ["cat", "dog"])
    assert told["nbytes"] == (tmp_path / "a.h5").stat().st_size


@pytest.mark.slow
def test_verify_compares_every_block(run: Run, photos: Path, tmp_path: Path) -> None:
    """An intact file passes, with the rate; one changed byte is found, and its block named."""
    assert run("pack", "photos", "a.h5", "--image-size", "1200x1200").returncode == 0
    whole = run("verify", "a.h5")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert "is intact: 6 blocks" in whole.stdout
    assert "MB/s" in whole.stdout or "GB/s" in whole.stdout
    assert result(run("verify", "a.h5", "--json"))["whole"] is True
    for block in (1, 2, 4):
        damage(tmp_path / "a.h5", block * (8 << 20) + 77)
    assert "3 of 6 blocks of 8.39 MB are not what was written: 1, 2, 4 " in reason(run("verify", "a.h5"), 1)
    told = run("verify", "a.h5", "--json")
    assert told.returncode == 1
    assert json.loads(told.stdout)["damaged_blocks"] == [1, 2, 4]


def test_verify_needs_a_manifest(run: Run, tmp_path: Path) -> None:
    """Without a manifest no file can be verified."""
    (tmp_path / "a.h5").write_bytes(b"anything")
    assert "no complete manifest 'a.h5.json'" in reason(run("verify", "a.h5"), 1)


@pytest.mark.slow
def test_what_fails_ends_with_1_and_one_line(run: Run, photos: Path, tmp_path: Path) -> None:
    """One sentence, and no traceback unless `--debug` asks for it; then the sentence still comes last."""
    done = run("stage", "nowhere", "--cache-dir", "none", "--debug")
    assert done.returncode == 1
    assert "Traceback (most recent call last)" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("colabstage: There is nothing at")
    (photos / "cat" / "000.png").write_bytes(b"no image")
    assert "cat/000.png" in reason(run("pack", "photos", "a.h5"), 1)
    assert "--on-error" in reason(run("pack", "photos", "a.h5", "--image-size", "8x8"), 1)
    assert not (tmp_path / "a.h5").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        *((f"photos --image-size {text}", text) for text in ("12px", "8x", "8x8x8", "8.5x8")),
        *(
            (f"photos --splits {text}", "gives no fractions")
            for text in ("train", "train=", "train=most", "train=0.8,", "a=0.5,a=0.5", "a=0.5,0.5", "=1")
        ),
        ("photos --image-size 0x8", "is not a size"),
        ("photos --splits train=0.8", "add up to 0.8"),
        ("photos --splits a/b=1", "cannot name a split"),
        ("photos --encoding jpeg", "'auto', 'pixels', 'encoded'"),
        ("photos --seed many", "--seed"),
        ("s4://bucket/photos", "s4://"),
    ],
)
def test_wrong_arguments_end_with_2(run: Run, photos: Path, words: str, complaint: str) -> None:
    """Invalid or impossible values are refused in one line before anything is done."""
    assert complaint in reason(run("stage", *words.split(), "--local-dir", "here", "--cache-dir", "none"), 2)


@pytest.mark.parametrize(
    ("option", "text", "samples", "sample_bytes"),
    [
        ("--image-size", "8x9", {"train": 10}, 216),
        ("--image-size", "8,9", {"train": 10}, 216),
        ("--image-size", "8X 9", {"train": 10}, 216),
        ("--image-size", "8", {"train": 10}, 192),
        ("--splits", "train=0.5, dev=.3,test=0.2", {"train": 5, "dev": 3, "test": 2}, 432),
        ("--splits", "0.8", {"train": 8, "test": 2}, 432),
        ("--splits", "0.6,0.2,0.2", {"train": 6, "val": 2, "test": 2}, 432),
    ],
)
def test_a_text_becomes_the_argument(
    run: Run, photos: Path, option: str, text: str, samples: dict[str, int], sample_bytes: int
) -> None:
    """Height comes first; fractions have names, or those of the usual splits; `none` means no cache."""
    planned = result(run("plan", "photos", option, text, "--local-dir", "here", "--cache-dir", "none", "--json"))
    assert (planned["samples"], planned["cache"]) == (samples, None)
    assert planned["pack_bytes"] == 10 * sample_bytes


@pytest.mark.slow
def test_ctrl_c_keeps_what_is_finished(run: Run, tmp_path: Path) -> None:
    """An interrupted command exits with 130 and one line; the same command continues from there."""
    folder = write_images(tmp_path / "large", each=2, side=500)
    for number in range(2, 60):
        for kind in ("cat", "dog"):
            (folder / kind / f"{number:03}.png").hardlink_to(folder / kind / "000.png")
    words = ("pack", "large", "a.h5", "--image-size", "32x32", "--json")
    places: dict[str, Any] = {"cwd": tmp_path, "env": practice_environment(tmp_path), "text": True}
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, **places) as started:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and blocks_finished(tmp_path) < 2:
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=30)
    assert (started.returncode, out) == (130, "")
    # On a slow machine, lines about progress come first.
    assert [line for line in err.splitlines() if line[0] not in "▸■"] == [
        "colabstage: Interrupted. What was finished is kept; the same command again continues from there."
    ]
    packed = result(run(*words))
    assert packed["samples"] == {"train": 120}
    assert packed["resumed"] > 0


def in_shell(folder: Path, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The result of a shell running `colabstage …` in a folder."""
    program = ["bash", "-c", line.replace("colabstage", shlex.join(COMMAND))]
    variables = practice_environment(folder) | environment
    return subprocess.run(program, cwd=folder, env=variables, capture_output=True, timeout=60, check=False)


def test_a_reader_that_leaves_is_no_failure_to_talk_about(tmp_path: Path, photos: Path) -> None:
    """`colabstage … | head` prints nothing on stderr when nobody reads on."""
    assert in_shell(tmp_path, "colabstage plan photos --cache-dir none | true").stderr == b""


def test_a_program_without_streams_does_its_work(tmp_path: Path, photos: Path) -> None:
    """As a service may start it; packing does not depend on printing."""
    done = in_shell(tmp_path, "colabstage pack photos a.h5 >&- 2>&- <&-")
    assert (done.returncode, done.stderr) == (0, b"")
    assert h5py.is_hdf5(tmp_path / "a.h5")


@pytest.mark.parametrize("buffering", ["1", ""])
def test_output_that_cannot_be_written_is_told(tmp_path: Path, buffering: str) -> None:
    """In words, without the system's error number."""
    done = in_shell(tmp_path, "colabstage cache list --cache-dir none > /dev/full", PYTHONUNBUFFERED=buffering)
    assert (done.returncode, done.stderr) == (1, b"colabstage: No space left on device.\n")


def test_a_terminal_that_cannot_show_a_name_fails_for_none(tmp_path: Path) -> None:
    """Characters that it lacks are escaped."""
    write_images(tmp_path / "phötos", each=2)
    done = in_shell(tmp_path, "colabstage pack phötos ö.h5", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, b"Written to '\\xf6.h5'" in done.stdout) == (0, True)


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ("pack photos out/", 2, "'out/' is a folder; expected the name of a file, for example 'out/pack.h5'."),
        ("pack photos photos/", 2, "Choose another name, for example '{here}/photos-pack.h5'."),
        ("pack photos photos/set.h5", 2, "Choose a place beside it, for example '{here}/photos-set.h5'."),
        ("pack photos s3://bucket/set.h5", 2, "'s3://bucket/set.h5' is an address; expected a path"),
        ("extract s3://bucket/a.zip out", 2, "'s3://bucket/a.zip' is an address"),
        ("verify https://example.org/a.h5", 2, "'https://example.org/a.h5' is an address"),
        ("info https://example.org/a.h5", 2, "copy it here with fetch_files first"),
        ("stage photos --local-dir s3://bucket", 2, "local_dir='s3://bucket' is an address"),
        ("fetch photos photos/cat/", 2, "is inside the source"),
        ("fetch photos other/file/", 1, "'{here}/other/file' is a file. Move it, or choose another place."),
        ("extract other/file out", 1, "Expected a zip, a tar"),
    ],
)
def test_a_place_is_what_was_typed(run: Run, photos: Path, tmp_path: Path, words: str, code: int, told: str) -> None:
    """A slash at the end means a folder, and an address is one; if neither is possible, nothing is written."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    assert told.replace("{here}", str(tmp_path)) in reason(run(*words.split()), code)
    assert sorted(tmp_path.rglob("*")) == before
