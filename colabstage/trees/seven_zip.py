"""7z and rar archives as trees: listed and checked, then unpacked into a temporary folder by the command that Colab's
image has for each: 7-Zip, which lacks RAR's codec there, and unrar. Elsewhere by a package, py7zr or rarfile."""

from __future__ import annotations

import contextlib
import importlib
import os
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
_INSTALL = {
    "7z": "install 7-Zip (apt-get install p7zip-full) or pip install py7zr",
    "rar": "install unrar (apt-get install unrar), or pip install rarfile with unar beside it (apt-get install unar)",
}
# The arguments for a technical listing, whose fields have names, and for unpacking. With an empty password, because
# both would otherwise prompt for one.
_LIST = {"7z": ("l", "-slt", "-ba", "-sccUTF-8", "-p", "-t7z"), "rar": ("lt", "-scf", "-p-", "-cfg-")}
_UNPACK = {"7z": ("x", "-y", "-sccUTF-8", "-p", "-t7z"), "rar": ("x", "-y", "-o+", "-scf", "-p-", "-cfg-", "-idq")}
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
    executable: bool


# The members of an archive, and a function that unpacks all of them into a folder, which is empty.
_Opened = tuple[list[_Listed], "Callable[[Path], object]"]


def _open(kind: ToolKind, path: str, label: str, cancellation: Cancellation) -> _Opened:
    command = next((found for name in _COMMANDS[kind] if (found := shutil.which(name))), None)
    if command is None:
        return _open_by_package(kind, path, label)
    listing = _run(label, command, [*_LIST[kind], "--", path], _LISTING_S, cancellation)
    members = list(_members(label, listing, kind))

    def unpack(folder: Path) -> None:
        target = [f"-o{folder}", "--", path] if kind == "7z" else ["--", path, f"{folder}/"]
        deadline_s = 60 + sum(member.size for member in members) / _SLOWEST_BYTES_PER_S
        _run(label, command, [*_UNPACK[kind], *target], deadline_s, cancellation)

    return members, unpack


def _open_by_package(kind: ToolKind, path: str, label: str) -> _Opened:
    missing = MissingDependencyError(f"'{label}' is a {kind} archive, and nothing here reads that: {_INSTALL[kind]}.")
    try:
        module = importlib.import_module(_PACKAGES[kind])
    except ImportError:
        raise missing from None

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        try:
            with (module.SevenZipFile if kind == "7z" else module.RarFile)(path) as archive:
                if archive.needs_password():
                    raise _locked(label)  # noqa: TRY301 - passes below
                yield archive
        except ColabstageError:
            raise
        # On damaged bytes these packages may raise anything.
        except Exception as error:
            errors = getattr(module, "exceptions", module)
            if isinstance(error, errors.PasswordRequired):
                raise _locked(label) from error
            if isinstance(error, getattr(errors, "RarCannotExec", ())):
                raise missing from error
            raise _failure(label, module.__name__, f"ERROR: {error}", 1) from error

    def listed(info: Any) -> _Listed:
        if kind == "7z":  # it does not say which files are executable
            return _Listed(info.filename, info.uncompressed or 0, info.is_directory, info.is_symlink, executable=False)
        is_link = not info.is_dir() and not info.is_file()
        return _Listed(info.filename, info.file_size, info.is_dir(), is_link, bool((info.mode or 0) & 0o100))

    def unpack(folder: Path) -> None:
        with opened() as archive:
            archive.extractall(folder)

    with opened() as archive:
        return [listed(info) for info in (archive.list() if kind == "7z" else archive.infolist())], unpack


def _run(label: str, command: str, arguments: list[str], deadline_s: float, cancellation: Cancellation) -> str:
    """Return what a tool prints."""
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
        while output is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                output = process.communicate(timeout=_LOOK_S)[0]
            if output is None and time.monotonic() > deadline:
                msg = f"Reading '{label}' takes too long; '{command}' hangs. Unpack it by hand."
                raise ArchiveError(msg)
            cancellation.check()
    finally:
        # In every case, cancellation included, so that no tool outlives this call, nor what it started: `7z` may be a
        # script. One that a dead disk holds is left.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_END_S)
    # Names in archives may have any encoding; bytes that are not UTF-8 go to the check of names unchanged.
    text = output.decode("utf-8", "surrogateescape")
    if process.returncode:
        raise _failure(label, command, text, process.returncode)
    return text


def _failure(label: str, command: str, output: str, code: int) -> ColabstageError:
    if any(mark in output.lower() for mark in _LOCKED):
        return _locked(label)
    if "no space left" in output.lower():
        msg = f"'{label}' does not fit on the disk when unpacked. Free some space, or choose another."
        return NotEnoughSpaceError(msg)
    # Not 7-Zip's "Errors: 1", but the error itself.
    lines = [line.strip() for line in output.splitlines() if "ERROR" in line or "checksum" in line.lower()]
    return damaged(label, f"{command} says {next(iter(lines), f'exit code {code}')!r}")


def _locked(label: str) -> ArchiveError:
    msg = f"'{label}' is encrypted. Unpack it with its password, and stage the folder or an archive without one."
    return ArchiveError(msg)


def _members(label: str, text: str, kind: ToolKind) -> Iterator[_Listed]:
    """Yield the members in a technical listing: lines "Key = value" or "Key: value", then a blank line."""
    separator, first = (" = ", "Path") if kind == "7z" else (": ", "Name")
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, _, value = line.partition(separator)
            # The first one counts: later ones could come from inside a name.
            fields.setdefault(key.strip(), value)
        if first in fields:
            yield _listed(label, fields, fields[first])


def _listed(label: str, fields: Mapping[str, str], name: str) -> _Listed:
    if fields.get("Encrypted") == "+" or "encrypted" in fields.get("Flags", ""):
        raise _locked(label)
    # The letters of Windows' attributes come first, in any number ("RHSD_ drwxr-xr-x"), then the Unix mode if the
    # archive was made on Unix; either may be missing.
    *_, windows, mode = ["", "", *fields.get("Attributes", "").split()]
    if len(mode) != _MODE_LETTERS:
        windows, mode = windows + mode, ""
    kind = fields.get("Type", "File")
    return _Listed(
        name,
        size=int(fields.get("Size") or 0),
        is_folder=kind == "Directory" or "D" in windows or mode.startswith("d"),
        is_link=mode.startswith("l") or kind not in ("File", "Directory"),
        executable=mode[3:4] == "x",
    )


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
                self.unpacked.mkdir()
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
        """Return the bytes of one member; its tool verified its checksum."""
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
    """Return the files by cleaned name, including junk, because the tool unpacks everything. Links are refused, because
    a tool should not follow any."""
    files: dict[str, _Listed] = {}
    folders: list[str] = []
    for member in members:
        raw = member.name.replace("\\", "/")
        name = clean_member_name(archive, raw, folder=member.is_folder)
        if member.is_link or name != raw.rstrip("/") or name in files:
            reason = "it is a link, has an absolute name, or is there twice, which is not read from such an archive"
            raise refuse_member(archive, member.name, reason)
        if member.is_folder:
            folders.append(name)
        else:
            files[name] = member
    check_collisions(archive, files, folders)
    return files


def _check_unpacked(archive: str, folder: Path, files: Mapping[str, _Listed]) -> None:
    """Check everything that the tool wrote: only the listed files, each with its size."""
    missing = set(files)
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*names, *folders)):
            name, status = path.relative_to(folder).as_posix(), path.lstat()
            if stat.S_ISDIR(status.st_mode):
                # Archives made on other systems have folders without the right to enter them.
                path.chmod(0o755)
            elif not stat.S_ISREG(status.st_mode) or name not in missing:
                msg = f"'{archive}' is refused: it unpacks to {name!r}, which it does not list as a file."
                raise UnsafeArchiveError(msg)
            elif status.st_size != files[name].size:
                raise damaged(archive, f"it does not unpack to {files[name].size:,} bytes", name)
            else:
                missing.remove(name)
    if missing:
        raise damaged(archive, "it was not unpacked", min(missing))
