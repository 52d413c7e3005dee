"""Every error colabstage raises, in one tree; each class is also the builtin a caller would expect.

    ColabstageError
    ├── NotSupportedHereError  (NotImplementedError)   this platform cannot do what was asked
    ├── MissingDependencyError (ImportError)           an optional package is not installed
    ├── CancelledError         (RuntimeError)          the caller asked to stop
    ├── RunInUseError          (RuntimeError)          another session trains with the folder of a run
    ├── WorkersLostError       (RuntimeError)          workers died, or fell silent
    ├── OptionError            (ValueError)            an argument has a value that cannot work
    │   └── ArgumentError      (TypeError)             there is no argument of that name
    ├── DriveError             (OSError)               something about the Google Drive mount
    │   ├── DriveNotMountedError
    │   ├── DriveAuthError     (PermissionError)
    │   ├── DriveDisconnectedError (ConnectionError)
    │   └── DriveQuotaError
    ├── SourceError            (OSError)               the data to stage
    │   ├── SourceNotFoundError (FileNotFoundError)
    │   ├── SourceAccessError  (PermissionError)       a login, a permission or a licence is missing
    │   └── SourceReadError
    │       ├── SourceChangedError                     it became another one while it was read
    │       ├── WebPageError                           an HTML page came in place of the data
    │       └── ChecksumMismatchError
    ├── ArchiveError           (ValueError)
    │   ├── CorruptArchiveError
    │   └── UnsafeArchiveError
    ├── LayoutError            (ValueError)            the files do not form a dataset we understand
    │   └── EmptySourceError
    ├── DecodeError            (ValueError)            one sample cannot be decoded
    ├── NotEnoughSpaceError    (OSError)               planned before the first byte, with figures
    ├── TargetNotWritableError (PermissionError)
    ├── TargetExistsError      (FileExistsError)       something that is not ours stands in the way
    ├── PackFormatError        (ValueError)            the file is not a pack that this version reads
    │   ├── ExternalFileError                          it leads to a file that did not come with it
    │   └── NewerFormatError
    ├── DamagedPackError       (OSError)               the file is a pack, but not whole
    ├── SplitNotFoundError     (KeyError)
    └── NotStagedError         (RuntimeError)          asked for before it is there

Each takes one message: what failed with the value, what was expected, what to do next. All of them pickle.
"""

from __future__ import annotations

import re

# Control characters but tab and line feed, characters that reverse the direction of writing, and lone surrogates.
_NUMBER_OF_SYSTEM = re.compile(r"\[(?:Errno|WinError) -?\d+\] ")
_UNPRINTABLE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def said_by(error: BaseException) -> str:
    """Return what an error of Python's, the system's or a library's says, in words that stand in a sentence.

    Neither its type nor the system's number for it: these say something to who wrote the library.

    >>> said_by(FileNotFoundError(2, "No such file or directory", "a"))
    'No such file or directory'
    >>> said_by(KeyError("size"))
    "'size' is missing"
    """
    if isinstance(error, OSError) and error.strerror:
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


def ended(text: str) -> str:
    """Return a sentence with exactly one mark at its end, which the text of an error may have or lack.

    >>> ended("the folder is gone"), ended("Was it moved?")
    ('the folder is gone.', 'Was it moved?')
    """
    text = text.strip()
    return text if text.endswith(("!", "?", "…")) else text.rstrip(".") + "."


def error_to_json(error: BaseException) -> list[str]:
    """Return what another process needs to raise the same: the name of ours, or `""`, and what it says."""
    # Who asked for nothing to be stopped is told why it was.
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
    """Return what kind of thing stands in a file where another was expected.

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
    r"""Write a text so that a terminal shows it and does nothing else.

    Names come from archives, servers and disks, and may hold codes that move the cursor, clear the screen, or make one
    name look like another.

    >>> printable("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a name that is no UTF-8, as Python keeps it
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


# Characters of a message, and how many of them are its end.
_LONGEST = 8000
_ENDING = 1000


class ColabstageError(Exception):
    """Base of every error raised on purpose by colabstage."""

    def __str__(self) -> str:
        # KeyError shows its argument quoted; a sentence reads better plain.
        text = str(self.args[0]) if self.args else ""
        # A name or a line of somebody's file may be of any length; what to do about it is at the end.
        if len(text) > _LONGEST:
            text = f"{text[: -_ENDING + _LONGEST]} … {text[-_ENDING:]}"
        return printable(text)

    def _render_traceback_(self) -> list[str]:
        # IPython asks for this: in a cell, what is below the caller's own line explains nothing to the caller.
        from colabstage.io.arguments import lines_of

        return lines_of(self)


class NotSupportedHereError(ColabstageError, NotImplementedError):
    """This platform cannot do what was asked, and the message says which can."""


class MissingDependencyError(ColabstageError, ImportError):
    """An optional package is not installed, or cannot be imported; the message says what to do."""


class CancelledError(ColabstageError, RuntimeError):
    """The caller asked to stop; what was there before is untouched.

    `because`: the error for which work was stopped that nobody waits for any more, where it is one.
    """

    because: ColabstageError | None = None


class WorkersLostError(ColabstageError, RuntimeError):
    """An executor's workers died again and again, or fell silent, and finished work is kept; a loader's died; or
    another rank of a training has."""


class OptionError(ColabstageError, ValueError):
    """An argument, or a combination of arguments, cannot work."""


class ArgumentError(OptionError, TypeError):
    """There is no argument of that name, or one is missing or has no name; the message has the line that was meant."""


class DriveError(ColabstageError, OSError):
    """Something about the Google Drive mount went wrong."""


class DriveNotMountedError(DriveError):
    """A Drive path was named, but no Drive is mounted."""


class DriveAuthError(DriveError, PermissionError):
    """Google refused, or nobody answered, the request for access to Drive."""


class DriveDisconnectedError(DriveError, ConnectionError):
    """The Drive client died: 'Transport endpoint is not connected'."""


class DriveQuotaError(DriveError):
    """Drive refuses further reads or writes for now."""


class SourceError(ColabstageError, OSError):
    """The data to stage cannot be used."""


class SourceNotFoundError(SourceError, FileNotFoundError):
    """There is nothing at the source's address."""


class SourceReadError(SourceError):
    """The source is there but could not be read, after the retries its kind deserves."""


class SourceAccessError(SourceError, PermissionError):
    """The service refuses: a login, a permission or an accepted licence is missing."""


class SourceChangedError(SourceReadError):
    """The source became another one while it was being read."""


class WebPageError(SourceReadError):
    """A web page came in place of the data: a confirmation, a login, an error in polite words."""


class ChecksumMismatchError(SourceReadError):
    """The whole file arrived, but its hash is not the one that was asked for; the message has both."""


class ArchiveError(ColabstageError, ValueError):
    """An archive cannot be used."""


class CorruptArchiveError(ArchiveError):
    """An archive is truncated or damaged."""


class UnsafeArchiveError(ArchiveError):
    """An archive names something no archive should: outside paths, devices, duplicates, bombs."""


class LayoutError(ColabstageError, ValueError):
    """The files do not form a dataset in any layout that was tried; the message lists them with the reasons."""


class EmptySourceError(LayoutError):
    """The source holds no sample at all."""


class DecodeError(ColabstageError, ValueError):
    """One sample cannot be decoded; the message names it."""


class NotEnoughSpaceError(ColabstageError, OSError):
    """The work would not fit on the disk; raised before the first byte, with figures."""


class TargetNotWritableError(ColabstageError, PermissionError):
    """Nothing can be written where the result should go."""


class TargetExistsError(ColabstageError, FileExistsError):
    """Something that colabstage did not make stands where the result should go."""


class PackFormatError(ColabstageError, ValueError):
    """The file is not a pack, or not one that can be read."""


class ExternalFileError(PackFormatError):
    """An HDF5 file leads to a file that did not come with it; the message names that, and what allows it."""


class NewerFormatError(PackFormatError):
    """The pack was written by a newer colabstage."""


class DamagedPackError(ColabstageError, OSError):
    """The file was a pack, but is truncated or its bytes are not the ones that were written."""


class SplitNotFoundError(ColabstageError, KeyError):
    """The dataset has no split of that name; the message lists those it has."""


class NotStagedError(ColabstageError, RuntimeError):
    """What was asked for is not here: a form has staged nothing yet, or only a part of a file is here."""


class RunInUseError(ColabstageError, RuntimeError):
    """Another session trains with a run's folder, or has taken it over."""
