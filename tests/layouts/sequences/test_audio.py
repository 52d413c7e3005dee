"""Clips of sound become rows of one length: the numbers that soundfile and the standard library read, and no others."""

import io
import struct
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from colabstage import pack_dataset
from colabstage.errors import DecodeError, LayoutError, MissingDependencyError, OptionError
from colabstage.options import Arrays, audio_clips
from tests.layouts.known import pcm, wav
from tests.layouts.readers import contents, read
from tests.support.made_files import write_files

RATE = 8000


@pytest.fixture
def soundfile() -> Any:
    return pytest.importorskip("soundfile", reason="needs soundfile: pip install soundfile")


def tone(number: int, length: int = 400, channels: int = 1) -> NDArray[np.int16]:
    """A sound that no other number has."""
    return np.random.default_rng(number).integers(-32768, 32768, (length, channels), np.int16)


WORDS = {f"{('go', 'no', 'yes')[number % 3]}/{number:02}.wav": pcm(tone(number)) for number in range(12)}


def decoded(content: bytes, dtype: Any = "float32") -> NDArray[Any]:
    (row,) = contents(read({"a/1.wav": content}, audio_clips(dtype=dtype)))
    return row if row.ndim == 2 else row[:, None]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("form", "subtype"),
    [
        *(("WAV", kind) for kind in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "IMA_ADPCM")),
        ("WAV", "GSM610"),
        ("WAVEX", "PCM_24"),
        ("WAVEX", "FLOAT"),
        ("FLAC", "PCM_16"),
        ("FLAC", "PCM_24"),
        ("OGG", "VORBIS"),
    ],
)
def test_clips_are_read_as_soundfile_reads_them(soundfile: Any, form: str, subtype: str) -> None:
    """Every kind of number, exactly; kinds that need soundfile go through it."""
    if not soundfile.check_format(form, subtype):
        pytest.skip(f"needs a libsndfile that writes {subtype} in {form}: pip install -U soundfile")
    for channels in (1, 2):
        file = io.BytesIO()
        # Telephones have one channel, and the library then does not know where the file ends.
        mono = {"frames": 1280} if subtype == "GSM610" else {}
        if mono and channels > 1:
            continue
        soundfile.write(file, tone(1, 1017, channels) / 32768, RATE, subtype=subtype, format=form)
        wanted, _ = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32", always_2d=True, **mono)
        np.testing.assert_array_equal(decoded(file.getvalue()), wanted)
        whole = decoded(file.getvalue(), "int16")
        assert whole.dtype == np.int16
        if subtype.startswith("PCM"):
            np.testing.assert_array_equal(
                whole, soundfile.read(io.BytesIO(file.getvalue()), dtype="int16", always_2d=True)[0]
            )
        else:
            np.testing.assert_allclose(whole, np.clip(wanted, -1, 1) * 32767.0, atol=0.51)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_folders_of_classes_become_rows(tmp_path: Path, dtype: Any) -> None:
    """From the folder to the pack: the very numbers of the files, with their classes."""
    folder = write_files(tmp_path / "set", WORDS)
    report = pack_dataset(folder, tmp_path / "out.h5", layout=audio_clips(dtype=dtype), progress=False)
    assert report.classes == ("go", "no", "yes")
    assert any("8,000 Hz, 400 samples" in note for note in report.notes)
    with h5py.File(tmp_path / "out.h5") as file:
        for key, x, y in zip(file["key_train"].asstr(), file["X_train"], file["Y_train"], strict=True):
            whole = tone(int(key[-6:-4]))[:, 0]
            np.testing.assert_array_equal(x, whole if dtype == "int16" else whole.astype(np.float32) / 32768)
            assert x.dtype == dtype
            assert report.classes[y] == key.split("/")[0]


def test_channels_stay_or_are_mixed() -> None:
    """(length, channels) as they are; their mean when asked, also where only some clips are stereo."""
    stereo, mono = tone(1, channels=2), tone(2)
    files = {"a/1.wav": pcm(stereo), "a/2.wav": pcm(mono)}
    np.testing.assert_array_equal(decoded(files["a/1.wav"], "int16"), stereo)
    mixed = contents(read(files, audio_clips(dtype="int16", mono=True)))
    np.testing.assert_array_equal(mixed, [np.rint(stereo.mean(axis=1)).astype(np.int16), mono[:, 0]])


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if size is None else size) + data + b"\0" * (len(data) % 2)


def riff(*chunks: bytes) -> bytes:
    body = b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


FORMAT = chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16))


@pytest.mark.parametrize("size", [None, 0xFFFFFFFF])
def test_other_chunks_and_unknown_lengths_are_read_over(size: int | None) -> None:
    """Lists before the samples, and the lengths that a stream leaves."""
    samples = np.arange(10, dtype="<i2")
    data = riff(chunk(b"LIST", b"odd"), FORMAT, chunk(b"data", samples.tobytes(), size))
    np.testing.assert_array_equal(decoded(data, "int16")[:, 0], samples)


@pytest.mark.parametrize(
    "data",
    [
        riff(FORMAT, chunk(b"data", bytes(10), 20)),
        riff(FORMAT),
        riff(chunk(b"data", bytes(10))),
        riff(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 0, RATE, 0, 0, 16)), chunk(b"data", bytes(4))),
        riff(FORMAT)[:20],
        b"",
        b"text",
        b"fLaC" + bytes(50),
        b"OggS" + bytes(100),
    ],
    ids=["cut", "no samples", "no format", "no channels", "half a header", "empty", "text", "FLAC", "Ogg"],
)
def test_damaged_clips_are_broken_samples(soundfile: Any, data: bytes) -> None:
    """Whatever the library says of them; the others are well."""
    inputs = read(WORDS).inputs
    assert isinstance(inputs, Arrays)
    with pytest.raises(DecodeError, match=r"^(?!.*object at)"):
        inputs.to_array(data)


@pytest.mark.parametrize("form", ["OGG", "FLAC"])
def test_clips_that_do_not_say_their_length_are_broken_samples(soundfile: Any, form: str) -> None:
    """An OGG says it at its end, which is cut off here, and libsndfile 1.2.2 counts what is left; FLAC at its
    beginning, where a pipe leaves zeros."""
    file = io.BytesIO()
    soundfile.write(file, tone(2, 30_000), RATE, format=form)
    data = file.getvalue()
    data = data[:-1000] if form == "OGG" else data[:21] + bytes([data[21] & 0xF0]) + bytes(4) + data[26:]
    inputs = read(WORDS).inputs
    assert isinstance(inputs, Arrays)
    what = "how many" if form == "FLAC" else "how many|20,224 samples and the others 400"
    with pytest.raises(DecodeError, match=what):
        inputs.to_array(data)


def test_a_clip_that_was_not_looked_at_is_not_cut_in_silence(tmp_path: Path) -> None:
    """Its file is as long as the others, its sound is not: named when it is packed."""
    made = {f"a/{number:02}.wav": pcm(tone(number)) for number in range(40)}
    made["a/17.wav"] = riff(chunk(b"fmt ", struct.pack("<HHIIHH", 1, 1, RATE, RATE, 1, 8)), chunk(b"data", bytes(800)))
    folder = write_files(tmp_path / "set", made)
    with pytest.raises(DecodeError, match=r"17\.wav.*\b800\b.*\b400\b"):
        pack_dataset(folder, tmp_path / "out.h5", layout="audio", progress=False)
    report = pack_dataset(folder, tmp_path / "out.h5", layout="audio", on_error="skip", progress=False)
    assert report.samples == {"train": 39}


NO_WORD = {f"train/{('no', 'yes')[n % 2]}/{n}.wav": pcm(tone(n)) for n in range(4)}
NO_WORD |= {f"val/val/{n}.wav": pcm(tone(n)) for n in (4, 5)}
REFUSED: dict[str, tuple[dict[str, bytes], Any, str]] = {
    "a shorter clip": (WORDS | {"go/short.wav": pcm(tone(50, 100))}, "auto", r"short\.wav'.*\b100\b.*length=400"),
    "one and two channels": (WORDS | {"go/both.wav": pcm(tone(1, channels=2))}, "auto", r"mono=True"),
    "other lengths in one folder": ({"all/1.wav": pcm(tone(1)), "all/2.wav": pcm(tone(2, 100))}, "auto", "one class"),
    "another rate": (WORDS | {"go/fast.wav": pcm(tone(1, 800), 16_000)}, "auto", r"16,000 Hz.*clips\(rate=8000\)"),
    "another rate and length": (WORDS | {"go/fast.wav": pcm(tone(1), 16_000)}, "auto", "rate=8000, length=400"),
    "another length at the rate asked for": (
        WORDS | {"go/fast.wav": pcm(tone(1), 16_000)}, audio_clips(rate=8000), "length=400"
    ),
    "clips without classes": ({"1.wav": pcm(tone(1))}, "audio", "audio"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rows_is_refused(case: str) -> None:
    """Nothing is resampled or cut in silence."""
    files, layout, named = REFUSED[case]
    with pytest.raises(LayoutError, match=named):
        read(files, layout)


@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_clips_of_other_rates_are_resampled(soundfile: Any, dtype: Any) -> None:
    """As soxr does, which librosa resamples by, without its noise; those that have the rate stay as they are."""
    soxr = pytest.importorskip("soxr", reason="needs soxr: pip install soxr")
    slow, fast = tone(1, 400, channels=2), tone(2, 800, channels=2)
    files = {"a/1.wav": pcm(slow, 8000), "b/2.wav": pcm(fast, 16_000)}
    scale = np.float32(1 if dtype == "int16" else 32768)
    meant = soxr.resample(fast.astype(np.float32) / scale, 16_000, 8000)
    meant = np.rint(np.clip(meant, -32768, 32767)) if dtype == "int16" else meant
    rows = contents(read(files, audio_clips(rate=8000, dtype=dtype)))
    np.testing.assert_array_equal(rows, [(slow / scale).astype(dtype), meant.astype(dtype)])
    mono = contents(read(files, audio_clips(rate=8000, dtype=dtype, mono=True, length=300)))
    assert mono[1].shape == (300,)
    # soxr rounds 498.5 samples up, others half down.
    assert len(contents(read({f"{kind}/1.wav": wav(997, 44_100) for kind in "ab"}, audio_clips(rate=22_050)))) == 2


def test_a_list_may_name_the_classes_of_a_split() -> None:
    assert read(NO_WORD | {"val/words.txt": b"4.wav\tno\n5.wav\tyes\n"}).classes == ("no", "yes")


def test_without_soundfile_there_is_an_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingDependencyError, match="pip install soundfile"):
        decoded(WORDS["go/00.wav"])


@pytest.mark.parametrize(
    "wrong",
    [{"length": 0}, {"rate": -1}, {"dtype": "int8"}, {"seconds": 1.0}, {"seconds": 1.0, "length": 3, "rate": 9}],
    ids=str,
)
def test_options_are_checked_before_any_tree_is_opened(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="|".join(wrong)):
        audio_clips(**wrong)


def test_a_length_in_seconds_is_that_many_samples() -> None:
    """Long clips lose their end, short ones get zeros behind them; shards have a length in samples."""
    short, long = tone(1, 700), tone(2, 1300)
    files = {"a/1.wav": pcm(short, 1000), "b/2.wav": pcm(long, 1000)}
    rows = contents(read(files, audio_clips(seconds=1.0, rate=1000, dtype="int16")))
    np.testing.assert_array_equal(rows, [[*short[:, 0], *[0] * 300], long[:1000, 0]])
