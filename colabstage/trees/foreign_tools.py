"""Who reads 7z and rar archives here: 7-Zip's command, or the packages py7zr and rarfile.

7-Zip comes first: it is on Colab's image, unpacks on all cores, and takes both formats.
"""

from __future__ import annotations

import errno
import importlib
import re
import resource
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from colabstage.errors import (
    ArchiveError,
    ColabstageError,
    CorruptArchiveError,
    MissingDependencyError,
    NotEnoughSpaceError,
)
from colabstage.trees.names import refuse_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from colabstage.progress import Cancellation

ForeignKind = Literal["7z", "rar"]

_COMMANDS = ("7zz", "7z", "7za")
_RAR_COMMANDS = ("unrar", "unar", "bsdtar")
_LISTING_S = 300.0
# The slowest that an archive is taken to unpack; a tool that needs longer hangs.
_SLOWEST_BYTES_PER_S = 500_000
_LOCKED = ("wrong password", "encrypted archive", "enter password", "data error in encrypted")
# A line of the section "Codecs": library, what it can do (D: decode), number, name.
_RAR_CODEC = re.compile(rb"(?m)^[ \d]*[EQ ]*D[EQF ]*4030[1-5]\s+Rar\d\s*$")
_LOOK_S = 0.25
_INSTALL = {
    "7z": "install 7-Zip (apt-get install p7zip-full) or pip install py7zr",
    "rar": (
        "install 7-Zip with its RAR codec (apt-get install 7zip 7zip-rar), or pip install rarfile with unrar or unar "
        "beside it (apt-get install unar)"
    ),
}


class Listed(NamedTuple):
    """One member as the archive lists it, its name uncleaned. `crc`: `None` where the archive has none."""

    name: str
    size: int
    is_folder: bool
    is_link: bool
    crc: int | None
    executable: bool


class Reader(Protocol):
    """One way to read an archive."""

    def members(self) -> list[Listed]: ...
    def unpack(self, folder: Path, *, largest: int, total: int) -> None: ...


def find_reader(kind: ForeignKind, path: str, label: str, handle: int, cancellation: Cancellation) -> Reader:
    """The first way to read such an archive that is there.

    Args:
        kind: what it is.
        path: where it can be opened.
        label: its address, for messages.
        handle: a file handle that `path` depends on.
        cancellation: looked at while 7-Zip works.

    Raises:
        MissingDependencyError: there is none.
    """
    command = next((found for name in _COMMANDS if (found := shutil.which(name))), None)
    if command is not None and (kind == "7z" or _reads_rar(command)):
        return _SevenZip(command, kind, path, label, handle=handle, cancellation=cancellation)
    package = {"7z": "py7zr", "rar": "rarfile"}[kind]
    try:
        module: Any = importlib.import_module(package)
    except ImportError:
        raise _cannot_read(label, kind, command) from None
    return _Py7zr(module, path, label) if kind == "7z" else _RarFile(module, path, label)


def _cannot_read(label: str, kind: ForeignKind, command: str | None) -> MissingDependencyError:
    why = "nothing here reads that"
    if command is not None:
        why = f"'{command}' lists such archives but lacks the codec that unpacks them"
    return MissingDependencyError(f"'{label}' is a {kind} archive, and {why}: {_INSTALL[kind]}.")


def _reads_rar(command: str) -> bool:
    """Whether 7-Zip unpacks rar: some distributions leave its codec out, for its licence, and keep the format."""
    shown = subprocess.run([command, "i"], capture_output=True, check=False, timeout=30, stdin=subprocess.DEVNULL)
    return _RAR_CODEC.search(shown.stdout) is not None


def _locked(label: str) -> ArchiveError:
    msg = f"'{label}' is encrypted. Unpack it with its password, and stage the folder or an archive without one."
    return ArchiveError(msg)


class _SevenZip:
    def __init__(
        self, command: str, kind: ForeignKind, path: str, label: str, *, handle: int, cancellation: Cancellation
    ) -> None:
        self._command = command
        self._cancellation = cancellation
        self._kind = kind
        self._path = path
        self._label = label
        self._handle = handle

    def members(self) -> list[Listed]:
        lines = self._run(["l", "-slt", "-ba"], deadline_s=_LISTING_S)
        return [self._member(fields) for fields in _blocks(self._label, lines)]

    def _member(self, fields: dict[str, str]) -> Listed:
        if fields.get("Encrypted") == "+":
            raise _locked(self._label)
        attributes = fields.get("Attributes", "")
        unix = attributes.rpartition(" ")[2]
        # The letters of Windows' attributes come first, in any number: "D", "HD", "RHSD_ drwxr-xr-x".
        windows = attributes.partition(" ")[0] if unix[:1] not in ("-", "d", "l") else attributes.rpartition(" ")[0]
        return Listed(
            name=fields["Path"],
            size=int(fields.get("Size") or 0),
            is_folder=fields.get("Folder") == "+" or "D" in windows or unix.startswith("d"),
            is_link=(unix[:1] not in ("", "-", "d") and len(unix) == 10) or bool(_link_of(fields)),
            crc=int(fields["CRC"], 16) if fields.get("CRC") else None,
            executable=len(unix) == 10 and unix[3] == "x",
        )

    def unpack(self, folder: Path, *, largest: int, total: int) -> None:
        def bound(process: int) -> None:
            # A member that holds more than it says ends there.
            resource.prlimit(process, resource.RLIMIT_FSIZE, (largest + 1, largest + 1))

        self._run(["x", "-y", f"-o{folder}"], deadline_s=60 + total / _SLOWEST_BYTES_PER_S, started=bound)

    def _run(self, arguments: list[str], *, deadline_s: float, started: Callable[[int], None] | None = None) -> str:
        command = [self._command, *arguments, "-sccUTF-8", "-p", f"-t{self._kind}", "--", self._path]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._handle,),
            start_new_session=True,
        )
        try:
            if started is not None:
                started(process.pid)
            output = self._output(process, time.monotonic() + deadline_s).decode("utf-8", "surrogateescape")
        except subprocess.TimeoutExpired:
            msg = f"Unpacking '{self._label}' took longer than {deadline_s:.0f} seconds; '{self._command}' hangs."
            raise ArchiveError(msg) from None
        finally:
            process.kill()
            process.communicate()
        if process.returncode:
            raise self._failed(output, process.returncode)
        return output

    def _output(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        while True:
            try:
                return process.communicate(timeout=_LOOK_S)[0]
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise
            self._cancellation.check()

    def _failed(self, output: str, code: int) -> ColabstageError:
        if any(mark in output.lower() for mark in _LOCKED):
            return _locked(self._label)
        if "unsupported method" in output.lower():
            return _cannot_read(self._label, self._kind, self._command)
        if "no space left" in output.lower():
            return _full(self._label)
        lines = [line.strip() for line in output.splitlines() if "ERROR" in line]
        reason = lines[0] if lines else f"exit code {code}"
        return CorruptArchiveError(
            f"'{self._label}' is damaged: 7-Zip says {reason!r}. Copy or upload the archive again."
        )


def _link_of(fields: dict[str, str]) -> str:
    return fields.get("Symbolic Link", "") or fields.get("Hard Link", "") or fields.get("Copy Link", "")


def _blocks(label: str, text: str) -> Iterator[dict[str, str]]:
    """The members in 7-Zip's technical listing: lines "Key = value", a blank line after each member."""
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, equals, value = line.partition(" =")
            if line.strip() and not equals:
                raise refuse_member(label, fields.get("Path", line), "its name contains a line break")
            fields.setdefault(key.strip(), value.removeprefix(" "))
        if "Path" in fields:
            yield fields


class _Py7zr:
    def __init__(self, module: Any, path: str, label: str) -> None:
        self._module = module
        self._path = path
        self._label = label

    def _open(self) -> Any:
        try:
            return self._module.SevenZipFile(self._path)
        except self._module.exceptions.PasswordRequired as error:
            raise _locked(self._label) from error
        # Its parser trips over damaged bytes with whatever they lead to.
        except Exception as error:
            raise _unreadable(self._label, error) from error

    def members(self) -> list[Listed]:
        with self._open() as archive:
            if archive.needs_password():
                raise _locked(self._label)
            return [
                Listed(
                    name=info.filename,
                    size=info.uncompressed or 0,
                    is_folder=info.is_directory,
                    is_link=bool(getattr(info, "is_symlink", False)),
                    crc=info.crc32,
                    executable=False,
                )
                for info in archive.list()
            ]

    def unpack(self, folder: Path, *, largest: int, total: int) -> None:
        with self._open() as archive:
            try:
                archive.extractall(folder)
            except Exception as error:
                raise _unreadable(self._label, error) from error


class _RarFile:
    def __init__(self, module: Any, path: str, label: str) -> None:
        self._module = module
        self._path = path
        self._label = label

    def _open(self) -> Any:
        try:
            archive = self._module.RarFile(self._path)
        except self._module.Error as error:
            raise _unreadable(self._label, error) from error
        if archive.needs_password():
            raise _locked(self._label)
        return archive

    def members(self) -> list[Listed]:
        with self._open() as archive:
            return [
                Listed(
                    name=info.filename,
                    size=info.file_size,
                    is_folder=info.is_dir(),
                    is_link=not info.is_dir() and not info.is_file(),
                    crc=info.CRC,
                    executable=bool((info.mode or 0) & 0o100),
                )
                for info in archive.infolist()
            ]

    def unpack(self, folder: Path, *, largest: int, total: int) -> None:
        deadline = time.monotonic() + 60 + total / _SLOWEST_BYTES_PER_S
        with self._open() as archive:
            try:
                for info in archive.infolist():
                    if time.monotonic() > deadline:
                        msg = f"Unpacking '{self._label}' takes too long; its tool hangs."
                        raise ArchiveError(msg)
                    archive.extract(info, folder)
            except self._module.Error as error:
                # It would also ask a 7-Zip that lacks the codec, and take its failure for damage.
                if not any(map(shutil.which, _RAR_COMMANDS)):
                    raise _cannot_read(self._label, "rar", None) from error
                raise _unreadable(self._label, error) from error


def _full(label: str) -> NotEnoughSpaceError:
    return NotEnoughSpaceError(f"'{label}' does not fit on the disk when unpacked. Free some space, or choose another.")


def _unreadable(label: str, error: Exception) -> ColabstageError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(label)
    return CorruptArchiveError(f"'{label}' is damaged ({error}). Copy or upload the archive again.")
