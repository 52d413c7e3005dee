"""7z and rar archives as trees: listed and checked, then unpacked by their tool into a temporary folder.

Each kind is read by the command in Colab's image: 7-Zip for 7z, which lacks RAR's codec there, and unrar for rar. If a
command is missing, the package py7zr or rarfile is used.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from colabstage.errors import (
    ArchiveError,
    ColabstageError,
    MissingDependencyError,
    NotEnoughSpaceError,
    UnsafeArchiveError,
)
from colabstage.io.files import block_ranges, make_folder
from colabstage.io.packages import isal_zlib
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.trees.bytes import PIECE_BYTES, ByteSource, LocalBytes, damaged
from colabstage.trees.folder import FolderFile
from colabstage.trees.listing import ArchiveLimits, FileEntries, FileEntry, Tree, check_limits
from colabstage.trees.names import check_collisions, clean_member_name, is_junk, refuse_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


ToolKind = Literal["7z", "rar"]

_COMMANDS = {"7z": ("7zz", "7z", "7za"), "rar": ("unrar",)}
_PACKAGES = {"7z": "py7zr", "rar": "rarfile"}
# The arguments for a technical listing, whose fields have names, and for unpacking. With an empty password, because
# both would otherwise prompt for one.
_LIST = {"7z": ("l", "-slt", "-ba", "-sccUTF-8", "-p", "-t7z"), "rar": ("lt", "-scf", "-p-", "-cfg-")}
_UNPACK = {"7z": ("x", "-y", "-sccUTF-8", "-p", "-t7z"), "rar": ("x", "-y", "-o+", "-scf", "-p-", "-cfg-", "-idq")}
_INSTALL = {
    "7z": "install 7-Zip (apt-get install p7zip-full) or pip install py7zr",
    "rar": "install unrar (apt-get install unrar), or pip install rarfile with unar beside it (apt-get install unar)",
}
# The exit codes of both say little, so their output decides.
_LOCKED = ("wrong password", "encrypted archive", "enter password", "data error in encrypted", "incorrect password")
# A listing reads only headers; if it takes longer than this, it hangs. So does a tool that unpacks more slowly.
_LISTING_S = 300.0
_SLOWEST_BYTES_PER_S = 500_000
_LOOK_S, _END_S = 0.25, 10.0
# An archive without members has only a few headers.
_EMPTY_BYTES = 128
# The length of a Unix mode in a listing: drwxr-xr-x.
_MODE_LETTERS = 10


class _Listed(NamedTuple):
    name: str
    """Its name, uncleaned."""
    size: int
    is_folder: bool
    is_link: bool
    crc: int | None
    executable: bool


# The members of an archive, and a function that unpacks all of them into a folder that it creates.
_Opened = tuple[list[_Listed], "Callable[[Path], object]"]


def _open(kind: ToolKind, path: str, label: str, cancellation: Cancellation) -> _Opened:
    command = next((found for name in _COMMANDS[kind] if (found := shutil.which(name))), None)
    if command is not None:
        return _open_by_command(command, kind, path, label, cancellation)
    try:
        module = importlib.import_module(_PACKAGES[kind])
    except ImportError:
        raise _nothing_reads(label, kind) from None
    return _open_by_package(module, kind, path, label)


def _open_by_command(command: str, kind: ToolKind, path: str, label: str, cancellation: Cancellation) -> _Opened:
    def run(arguments: list[str], deadline_s: float, most_bytes: int | None = None) -> str:
        process = subprocess.Popen(
            [command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            # Otherwise a Ctrl-C in the terminal would reach the tool too, before this process has cleaned up.
            start_new_session=True,
        )
        deadline, output = time.monotonic() + deadline_s, None
        try:
            if most_bytes is not None:
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
            while output is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output = process.communicate(timeout=_LOOK_S)[0]
                if output is None and time.monotonic() > deadline:
                    msg = f"Reading '{label}' takes too long; '{command}' hangs. Unpack it by hand."
                    raise ArchiveError(msg)
                cancellation.check()
        finally:
            # In every case, cancellation included, so that no tool outlives this call, nor what it started: `7z` may be
            # a script. One that a dead disk holds is left.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=_END_S)
        # Names in archives may have any encoding; bytes that are not UTF-8 go to the check of names unchanged.
        text = output.decode("utf-8", "surrogateescape")
        if process.returncode:
            raise _failure(label, f"{command} says", text, process.returncode)
        return text

    members = [_listed(label, fields) for fields in _blocks(label, run([*_LIST[kind], "--", path], _LISTING_S), kind)]

    def unpack(folder: Path) -> None:
        folder.mkdir()
        largest, total = max((one.size for one in members), default=0), sum(one.size for one in members)
        target = [f"-o{folder}", "--", path] if kind == "7z" else ["--", path, f"{folder}/"]
        # The system cuts off a member that has more content than it declares.
        run([*_UNPACK[kind], *target], 60 + total / _SLOWEST_BYTES_PER_S, largest + 1)

    return members, unpack


def _failure(label: str, who: str, output: str, code: int) -> ColabstageError:
    if any(mark in output.lower() for mark in _LOCKED):
        return _locked(label)
    if "no space left" in output.lower():
        return _full(label)
    # Not 7-Zip's "Errors: 1", but the error itself.
    lines = [line.strip() for line in output.splitlines() if "ERROR" in line or "checksum" in line.lower()]
    return damaged(label, f"{who} {next(iter(lines), f'exit code {code}')!r}")


def _blocks(label: str, text: str, kind: ToolKind) -> Iterator[dict[str, str]]:
    """Yield the members in a technical listing: lines "Key = value" or "Key: value", then a blank line."""
    separator, first = (" = ", "Path") if kind == "7z" else (": ", "Name")
    # A name with a line break could forge the fields of another member.
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, found, value = f"{line} ".partition(separator)
            if line.strip() and not found and first in fields:
                raise refuse_member(label, fields[first], "its name contains a line break")
            # The first one counts: later ones could come from inside a name.
            fields.setdefault(key.strip(), value[:-1])
        if first in fields:
            yield fields


def _listed(label: str, fields: Mapping[str, str]) -> _Listed:
    if fields.get("Encrypted") == "+" or "encrypted" in fields.get("Flags", ""):
        raise _locked(label)
    # The letters of Windows' attributes come first, in any number ("RHSD_ drwxr-xr-x"), then the Unix mode if the
    # archive was made on Unix; either may be missing.
    *_, windows, mode = ["", "", *fields.get("Attributes", "").split()]
    if len(mode) != _MODE_LETTERS:
        windows, mode = windows + mode, ""
    kind, crc = fields.get("Type", "File"), fields.get("CRC") or fields.get("CRC32")
    is_folder = fields.get("Folder") == "+" or kind == "Directory" or "D" in windows or mode.startswith("d")
    return _Listed(
        name=fields.get("Path") or fields.get("Name", ""),
        size=int(fields.get("Size") or 0),
        is_folder=is_folder,
        is_link=mode.startswith("l")
        or kind not in ("File", "Directory")
        or any(fields.get(f"{link} Link") for link in ("Symbolic", "Hard", "Copy")),
        crc=int(crc, 16) if crc else None,
        executable=mode[3:4] == "x",
    )


def _open_by_package(module: Any, kind: ToolKind, path: str, label: str) -> _Opened:
    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        try:
            with (module.SevenZipFile if kind == "7z" else module.RarFile)(path) as archive:
                if archive.needs_password():
                    raise _locked(label)  # noqa: TRY301  # passes below
                yield archive
        except ColabstageError:
            raise
        # On damaged bytes these packages may raise anything.
        except Exception as error:
            errors = getattr(module, "exceptions", module)
            if isinstance(error, errors.PasswordRequired):
                raise _locked(label) from error
            if isinstance(error, getattr(errors, "RarCannotExec", ())):
                raise _nothing_reads(label, kind) from error
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full(label) from error
            raise damaged(label, str(error)) from error

    def listed(info: Any) -> _Listed:
        if kind == "7z":  # it does not say which files are executable
            is_link = bool(getattr(info, "is_symlink", False))
            return _Listed(info.filename, info.uncompressed or 0, info.is_directory, is_link, info.crc32, False)
        is_link, executable = not info.is_dir() and not info.is_file(), bool((info.mode or 0) & 0o100)
        return _Listed(info.filename, info.file_size, info.is_dir(), is_link, info.CRC, executable)

    def unpack(folder: Path) -> None:
        folder.mkdir()
        with opened() as archive:
            archive.extractall(folder)

    with opened() as archive:
        return [listed(info) for info in (archive.list() if kind == "7z" else archive.infolist())], unpack


def _nothing_reads(label: str, kind: ToolKind) -> MissingDependencyError:
    return MissingDependencyError(f"'{label}' is a {kind} archive, and nothing here reads that: {_INSTALL[kind]}.")


def _locked(label: str) -> ArchiveError:
    msg = f"'{label}' is encrypted. Unpack it with its password, and stage the folder or an archive without one."
    return ArchiveError(msg)


def _full(label: str) -> NotEnoughSpaceError:
    return NotEnoughSpaceError(f"'{label}' does not fit on the disk when unpacked. Free some space, or choose another.")


class ToolArchiveTree(Tree):
    """The files in a 7z or rar archive. These formats pack many members into one stream, so all are unpacked at once,
    into a folder in `spool`, which is on a local disk."""

    unpacked: Path

    def __init__(
        self, source: ByteSource, kind: ToolKind, spool: Path, limits: ArchiveLimits, cancellation: Cancellation | None
    ) -> None:
        self.packed, self.label, self.kind = source, source.label, kind
        # On the disk where the files are used, so that extraction can move them instead of copying.
        make_folder(spool)
        self.unpacked = temp_beside(spool / "unpacked")
        try:
            cancellation = cancellation or Cancellation()
            with _as_file(source, temp_beside(spool / f"archive.{kind}"), cancellation) as path:
                members, unpack = _open(kind, path, self.label, cancellation)
                if not members and source.size > _EMPTY_BYTES:
                    raise damaged(self.label, "no member can be found in it")  # noqa: TRY301
                check_limits(self.label, len(members), sum(member.size for member in members), source.size, limits)
                # Checked in the listing, before the tool writes a byte.
                listed = _check_listed(self.label, members)
                unpack(self.unpacked)
            # And checked again afterwards: the listing may say one thing and the content another.
            _check_unpacked(self.label, self.unpacked, listed)
        except BaseException:
            remove_own(self.unpacked)
            raise
        files = {name: member for name, member in listed.items() if not is_junk(name)}
        names = sorted(files)
        self.entries = FileEntries(
            names,
            np.array([files[name].size for name in names], np.int64),
            np.array([(self.unpacked / name).lstat().st_mtime_ns for name in names], np.int64),
            np.arange(len(names)),
            np.array([files[name].executable for name in names], np.bool_),
        )

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the bytes of one member; its checksum was verified when it was unpacked."""
        own = self.entries[self._own(entry)]
        # Nothing here is a link, so a link that appeared meanwhile is not followed.
        return FolderFile(self.unpacked / own.name, own.size, follow=False)

    def close(self) -> None:
        remove_own(self.unpacked)
        super().close()


@contextlib.contextmanager
def _as_file(source: ByteSource, temp: Path, cancellation: Cancellation) -> Iterator[str]:
    """Yield a path at which a tool finds the archive's bytes."""
    try:
        if isinstance(source, LocalBytes):
            # Through this process's handle, so that the tool, or one that it starts, reads the very file that was
            # opened; and under a name with a suffix, which some tools would otherwise add.
            temp.symlink_to(f"/proc/{os.getpid()}/fd/{source.fileno()}")
        else:
            with temp.open("xb") as copy:
                for offset, length in block_ranges(source.size, PIECE_BYTES):
                    cancellation.check()
                    copy.write(source.pread(length, offset))
        yield str(temp)
    finally:
        remove_own(temp)


def _check_listed(archive: str, members: list[_Listed]) -> dict[str, _Listed]:
    """Return the files by cleaned name, including junk: the tool unpacks everything, and of two files with one name the
    later would win. Links are refused, because a tool should not follow any."""
    found: list[tuple[str, _Listed]] = []
    for member in members:
        raw = member.name.replace("\\", "/")
        name = clean_member_name(archive, raw, folder=member.is_folder)
        if name != raw.rstrip("/"):
            raise refuse_member(archive, member.name, "its name is absolute, or has parts that name no folder")
        if member.is_link:
            raise refuse_member(archive, name, "it is a link, which is not read from such an archive")
        found.append((name, member))
    names = [name for name, member in found if not member.is_folder]
    check_collisions(archive, names, [name for name, member in found if member.is_folder])
    return {name: member for name, member in found if not member.is_folder}


def _check_unpacked(archive: str, folder: Path, files: Mapping[str, _Listed]) -> None:
    """Check everything that the tool wrote: only the listed files, each with its size and checksum."""
    missing = set(files)
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*names, *folders)):
            name, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
            if stat.S_ISDIR(mode):
                # Archives made on other systems have folders without the right to enter them.
                path.chmod(0o755)
            elif not stat.S_ISREG(mode):
                msg = f"'{archive}' is refused: {name!r} unpacks to a link or a device."
                raise UnsafeArchiveError(msg)
            elif name not in missing:
                msg = f"'{archive}' is refused: it unpacks to {name!r}, which it does not list."
                raise UnsafeArchiveError(msg)
            else:
                missing.remove(name)
    if missing:
        raise damaged(archive, f"{min(missing)!r} was not unpacked")
    for name, listed in files.items():
        # Read once more, because a tool may have stopped inside a file without an error.
        crc = size = 0
        with (folder / name).open("rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                size += len(piece)
                crc = isal_zlib.crc32(piece, crc)
        if size != listed.size or (listed.crc is not None and crc != listed.crc):
            raise damaged(archive, f"its member {name!r} is not what the archive lists")
