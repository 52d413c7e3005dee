"""Every error colabstage raises, in one tree; each class is also the builtin a caller would expect.

Each takes one message: what failed with the value, what was expected, what to do next. All of them pickle.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Control characters except tab and line feed, characters that reverse the writing direction, and lone surrogates.
_NUMBER_OF_SYSTEM = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")
_UNPRINTABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def said_by(error: BaseException) -> str:
    """Return what an error of Python, the system or a library says, in words that fit into a sentence.

    Its type and the system's error number are left out: they help only the developers of the library.

    >>> said_by(FileNotFoundError(2, "No such file or directory", "a"))
    'No such file or directory'
    >>> said_by(KeyError("size"))
    "'size' is missing"
    """
    if isinstance(error, OSError) and (error.errno or 0) < 0:  # as only errors of name servers are numbered
        text = (
            f"{error.strerror}: the server's name is not known here; check the address, and whether this machine has "
            "internet (in a Kaggle notebook: Settings, Turn on internet)"
        )
    elif isinstance(error, OSError) and error.strerror:
        text = str(error.strerror)
    elif isinstance(error, KeyError):
        text = f"{error} is missing"
    elif isinstance(error, UnicodeDecodeError):
        text = f"byte {error.start:,} is not text in {error.encoding.upper()}"
    elif isinstance(error, RecursionError):
        text = "it is nested too deeply"
    elif isinstance(error, MemoryError):
        text = "it does not fit into memory"
    else:
        text = _NUMBER_OF_SYSTEM.sub("", str(error))
    return text.strip().removesuffix(".") or "no reason was given"


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on; each once, because causes may form a cycle."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def ended(text: str) -> str:
    """Return a sentence that ends in exactly one punctuation mark, whether or not the error's text has one.

    >>> ended("the folder is gone"), ended("Was it moved?")
    ('the folder is gone.', 'Was it moved?')
    """
    text = text.strip()
    return text if text.endswith(("!", "?", "…")) else text.rstrip(".") + "."


def error_to_json(error: BaseException) -> list[str]:
    """Return what another process needs to raise the same error: the name of our class, or `""`, and its message."""
    # A caller who cancelled nothing needs to know why the work was stopped.
    error = getattr(error, "because", None) or error
    kind = type(error)
    return [kind.__name__ if issubclass(kind, ColabstageError) else "", said_by(error)]


def error_from_json(raw: object, otherwise: type[ColabstageError]) -> tuple[type[ColabstageError], str]:
    """Return the type and the words that `error_to_json` wrote; `otherwise` for an error that is not colabstage's.

    >>> error_from_json(["SourceReadError", "It broke off"], ColabstageError)
    (<class 'colabstage.errors.SourceReadError'>, 'It broke off')
    """
    if not isinstance(raw, list) or len(raw) != 2:
        return otherwise, "no reason was given"
    kind = globals().get(str(raw[0]))
    if not (isinstance(kind, type) and issubclass(kind, ColabstageError)):
        kind = otherwise
    return kind, str(raw[1])


def kind_of(value: object) -> str:
    """Name the kind of value that a file holds where another was expected.

    >>> kind_of([1, 2])
    'a list'
    """
    words = {
        type(None): "nothing",
        bool: "true or false",
        int: "a number",
        float: "a number",
        str: "text",
        bytes: "bytes",
        list: "a list",
        dict: "an object with fields",
    }
    return words.get(type(value)) or f"a value of another kind ({type(value).__name__})"


def printable(text: str) -> str:
    r"""Escape a text so that a terminal shows it and does nothing else.

    Names come from archives, servers and disks, and may hold codes that move the cursor, clear the screen, or make one
    name look like another.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a name that is not UTF-8, as Python represents it
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


# The most characters of a message that are shown, and how many of them are its end.
_LONGEST = 8000
_ENDING = 1000


# --- Arguments and packages ---


class ColabstageError(Exception):
    """The base of all errors that colabstage raises on purpose. What to do: catch this one to catch all."""

    def __str__(self) -> str:
        # `KeyError` shows its argument in quotes, and a sentence reads better without.
        text = str(self.args[0]) if self.args else ""
        # A quoted name or line may be of any length; the advice is at the end.
        if len(text) > _LONGEST:
            text = f"{text[: -_ENDING + _LONGEST]} … {text[-_ENDING:]}"
        return printable(text)

    def _render_traceback_(self) -> list[str]:
        # IPython calls this. In a cell, the frames below the caller's own line explain nothing to the caller.
        from colabstage.io.callers_code import lines_of

        return lines_of(self)


class OptionError(ColabstageError, ValueError):
    """An argument has a value that cannot work, on its own or beside another. What to do: choose a value that the
    message lists."""


class ArgumentError(OptionError, TypeError):
    """No argument has that name, one is missing, or a keyword-only one was passed by position. What to do: use the one
    that the message suggests."""


class SplitNotFoundError(ColabstageError, KeyError):
    """No split has that name. What to do: choose one that the message lists; validation data keeps its name in the
    source."""


class NotSupportedHereError(ColabstageError, NotImplementedError):
    """This platform or thread cannot do it, for example mount Drive outside Colab. What to do: the message says where
    it can be done."""


class MissingDependencyError(ColabstageError, ImportError):
    """An optional package, or the tool that reads a 7z or rar, is missing or cannot be imported. What to do: run the
    install line in the message, or restart the runtime."""


class CancelledError(ColabstageError, RuntimeError):
    """The work, or an iterator, was cancelled. What to do: call again; start a new iterator."""

    because: ColabstageError | None = None
    """The error that stopped work for which nobody waits any more."""


class NotStagedError(ColabstageError, RuntimeError):
    """A staging form has staged nothing yet; or a file is local only in part, under `disk_limit=`. What to do: press
    Stage; or read `data["train"]` or `data.to_keras("train", 64)`."""


# --- Google Drive ---


class DriveError(ColabstageError, OSError):
    """The mount failed in a way that no other class describes. What to do: the message quotes the client."""


class DriveNotMountedError(DriveError):
    """The path is on Drive, and no Drive is mounted there any more. What to do: `mount_drive()` in a cell, then the
    same call."""


class DriveAuthError(DriveError, PermissionError):
    """Access was refused, the dialogue was not answered, or an administrator forbids it. What to do: run the cell again
    and answer the dialogue."""


class DriveDisconnectedError(DriveError, ConnectionError):
    """The client died or does not answer. What to do: `mount_drive()`, then the same call."""


class DriveQuotaError(DriveError):
    """Too many people have downloaded this file, or this machine's address has sent too many requests. What to do: copy
    the file into your own Drive, or wait a day."""


# --- The source ---


class SourceError(ColabstageError, OSError):
    """The data cannot be used."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """Nothing is at that address. What to do: check the spelling; files added to Drive elsewhere appear after
    `refresh_drive()`."""


class SourceAccessError(SourceError, PermissionError):
    """A login, a permission or an accepted licence is missing. What to do: share the file with "Anyone with the link",
    log in with the service's own tool, or accept its terms."""


class SourceReadError(SourceError):
    """It exists but could not be read, even after retries; or a server sent less than 1 KiB/s for minutes. What to do:
    call again; what has arrived is kept."""


class SourceChangedError(SourceReadError):
    """It changed while it was being read. What to do: call again when nothing writes to it any more."""


class WebPageError(SourceReadError):
    """The server sent a page, or text for an archive, instead of the data: a login, a confirmation, an error. What to
    do: use the address of the download itself."""


class ChecksumMismatchError(SourceReadError):
    """The file does not have the hash given as `hash=`. What to do: compare the two hashes in the message."""


# --- Archives and what is in them ---


class ArchiveError(ColabstageError, ValueError):
    """The archive cannot be used, or the file is not an archive."""


class CorruptArchiveError(ArchiveError):
    """It ends early, something follows its end, or a checksum is wrong. What to do: download it again; an upload to
    Drive may not have finished."""


class UnsafeArchiveError(ArchiveError):
    """It contains paths outside the target, devices, a name that is a file and a folder, or far more bytes than its
    size allows. What to do: do not extract it with another tool either."""


class LayoutError(ColabstageError, ValueError):
    """The files are not a dataset in any layout that was tried. What to do: the message gives the reasons; choose one
    with `layout=`, or write your own."""


class EmptySourceError(LayoutError):
    """No samples were found. What to do: the message says which files there are instead."""


class DecodeError(ColabstageError, ValueError):
    """One sample cannot be decoded. What to do: fix or remove the file that it names, or use `on_error="skip"`."""


# --- Disk and files ---


class NotEnoughSpaceError(ColabstageError, OSError):
    """It would not fit on the disk or in memory. What to do: use a smaller `image_size`, `encoding="encoded"` or
    `"jpeg:90"`, another `local_dir`, or `colabstage cache purge`."""


class TargetNotWritableError(ColabstageError, PermissionError):
    """Nothing can be written there, or the disk or mount fails meanwhile. What to do: choose another folder; the Drive
    may be mounted read-only."""


class TargetExistsError(ColabstageError, FileExistsError):
    """Something is already at the target that colabstage did not make, or that has changed since. What to do: use
    another name, or `overwrite=True` where there is such an option."""


class PackFormatError(ColabstageError, ValueError):
    """The file is not an HDF5 file with `X_<split>` and `Y_<split>`, or several files do not fit together. What to do:
    the message says how."""


class ExternalFileError(PackFormatError):
    """An HDF5 file leads to another file. What to do: if you trust it, `dataset_h5(path, allow_external=True)`."""


class NewerFormatError(PackFormatError):
    """A newer colabstage wrote it. What to do: install that, as the README says."""


class DamagedPackError(ColabstageError, OSError):
    """The pack's bytes are not those that were written. What to do: delete it, then stage, copy or publish it again;
    `colabstage verify` lists the damaged blocks."""


# --- Many machines ---


class RunInUseError(ColabstageError, RuntimeError):
    """Another session trains in the folder of this `resumable` run, or has taken it over. What to do: stop the other
    one, or pass `take_over=True`."""


class WorkersLostError(ColabstageError, RuntimeError):
    """An executor's workers died repeatedly or stopped responding, a loader's worker died, or another rank failed. What
    to do: usually there is too little memory, or a file crashes its decoder. Call again: finished shards are kept.
    Another rank's output says why it failed."""
