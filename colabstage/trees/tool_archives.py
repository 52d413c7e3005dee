"""7z and rar archives as trees: listed and checked, then unpacked by their tool into a folder that goes with the tree.

7-Zip's command comes first: it is on Colab's image, unpacks on all cores, and takes both formats. Where it is missing,
the packages py7zr and rarfile are asked.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import re
import resource
import shutil
import stat
import subprocess
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from colabstage.errors import (
    ArchiveError,
    ColabstageError,
    CorruptArchiveError,
    MissingDependencyError,
    NotEnoughSpaceError,
    UnsafeArchiveError,
)
from colabstage.io.accelerated import isal_zlib
from colabstage.io.files import block_ranges, make_folder
from colabstage.io.progress import Cancellation
from colabstage.io.workspace import remove_own, temp_beside
from colabstage.trees.entries import (
    DEFAULT_LIMITS,
    ArchiveLimits,
    check_collisions,
    check_limits,
    clean_folder_name,
    clean_member_name,
    is_junk,
    refuse_member,
)
from colabstage.trees.folder import FolderFile
from colabstage.trees.tree import (
    HEAD_BYTES,
    PIECE_BYTES,
    FileEntry,
    LocalBytes,
    Tree,
    owners_bytes,
    tool_archive_kind,
    unknown_entry,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from colabstage.trees.tree import ByteSource

ToolArchiveKind = Literal["7z", "rar"]

# 7-Zip's own build first, then p7zip's, last the one without plug-ins.
_COMMANDS = ("7zz", "7z", "7za")
_RAR_COMMANDS = ("unrar", "unar", "bsdtar")
# A listing reads headers alone; one that takes longer hangs.
_LISTING_S = 300.0
# A tool that is slower than this hangs.
_SLOWEST_BYTES_PER_S = 500_000
# 7-Zip has one exit code for all of these, so its words are all there is.
_LOCKED = ("wrong password", "encrypted archive", "enter password", "data error in encrypted")
# A line of the section "Codecs" of `7z i`: library, abilities (D: decode), number, name.
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
    """One member as the archive lists it."""

    name: str
    """Its name, uncleaned."""
    size: int
    """The size of its content, in bytes."""
    is_folder: bool
    """Whether it is a folder."""
    is_link: bool
    """Whether it is a link of any kind."""
    crc: int | None
    """Its checksum; `None` where the archive has none."""
    executable: bool
    """Whether it is marked as a program of its owner."""


class ArchiveReader(Protocol):
    """One way to read an archive."""

    def members(self) -> list[Listed]: ...
    def unpack(self, folder: Path, *, largest: int, total: int) -> None: ...


def find_reader(kind: ToolArchiveKind, path: str, label: str, handle: int, cancellation: Cancellation) -> ArchiveReader:
    """Return the first available reader for an archive of this kind.

    Args:
        kind: the kind of archive.
        path: where it can be opened.
        label: its address, for messages.
        handle: a file handle that `path` depends on.
        cancellation: checked while 7-Zip works.

    Raises:
        MissingDependencyError: there is none.
    """
    # The program before the packages, which are slower.
    command = next((found for name in _COMMANDS if (found := shutil.which(name))), None)
    if command is not None and (kind == "7z" or _reads_rar(command)):
        return _SevenZip(command, kind, path, label, handle=handle, cancellation=cancellation)
    package = {"7z": "py7zr", "rar": "rarfile"}[kind]
    try:
        module: Any = importlib.import_module(package)
    except ImportError:
        raise _cannot_read(label, kind, command) from None
    return _Py7zr(module, path, label) if kind == "7z" else _RarFile(module, path, label)


def _cannot_read(label: str, kind: ToolArchiveKind, command: str | None) -> MissingDependencyError:
    why = "nothing here reads that"
    if command is not None:
        why = f"'{command}' lists such archives but lacks the codec that unpacks them"
    return MissingDependencyError(f"'{label}' is a {kind} archive, and {why}: {_INSTALL[kind]}.")


def _reads_rar(command: str) -> bool:
    """Tell whether 7-Zip can unpack rar."""
    # Some distributions leave the codec out because of its licence. Such a 7-Zip lists rar archives, and then fails.
    shown = subprocess.run([command, "i"], capture_output=True, check=False, timeout=30, stdin=subprocess.DEVNULL)
    return _RAR_CODEC.search(shown.stdout) is not None


def _locked(label: str) -> ArchiveError:
    msg = f"'{label}' is encrypted. Unpack it with its password, and stage the folder or an archive without one."
    return ArchiveError(msg)


class _SevenZip:
    def __init__(
        self, command: str, kind: ToolArchiveKind, path: str, label: str, *, handle: int, cancellation: Cancellation
    ) -> None:
        self._command = command
        self._cancellation = cancellation
        self._kind = kind
        self._path = path
        self._label = label
        self._handle = handle

    def members(self) -> list[Listed]:
        # The technical listing, whose fields have names: columns of the usual one move with the length of names.
        lines = self._run(["l", "-slt", "-ba"], deadline_s=_LISTING_S)
        return [self._member(fields) for fields in _blocks(self._label, lines)]

    def _member(self, fields: dict[str, str]) -> Listed:
        if fields.get("Encrypted") == "+":
            raise _locked(self._label)
        # Unix's mode comes after the letters of Windows where the archive was made on Unix; either may be missing.
        attributes = fields.get("Attributes", "")
        unix = attributes.rpartition(" ")[2]
        # The letters of Windows' attributes come first, in any number: "D", "HD", "RHSD_ drwxr-xr-x".
        windows = attributes.partition(" ")[0] if unix[:1] not in ("-", "d", "l") else attributes.rpartition(" ")[0]
        return Listed(
            name=fields["Path"],
            size=int(fields.get("Size") or 0),
            is_folder=fields.get("Folder") == "+" or "D" in windows or unix.startswith("d"),
            is_link=(unix[:1] not in ("", "-", "d") and len(unix) == 10)
            or bool(fields.get("Symbolic Link", "") or fields.get("Hard Link", "") or fields.get("Copy Link", "")),
            crc=int(fields["CRC"], 16) if fields.get("CRC") else None,
            executable=len(unix) == 10 and unix[3] == "x",
        )

    def unpack(self, folder: Path, *, largest: int, total: int) -> None:
        def bound(process: int) -> None:
            # A member that has more content than it declares is cut off by the system.
            resource.prlimit(process, resource.RLIMIT_FSIZE, (largest + 1, largest + 1))

        self._run(["x", "-y", f"-o{folder}"], deadline_s=60 + total / _SLOWEST_BYTES_PER_S, started=bound)

    def _run(self, arguments: list[str], *, deadline_s: float, started: Callable[[int], None] | None = None) -> str:
        # With an empty password, since 7-Zip would otherwise ask for one, and with the kind, which it would guess.
        command = [self._command, *arguments, "-sccUTF-8", "-p", f"-t{self._kind}", "--", self._path]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(self._handle,),
            # A Ctrl-C in the terminal would otherwise reach the tool too, before this process has cleared up.
            start_new_session=True,
        )
        try:
            if started is not None:
                started(process.pid)
            # Names in archives may be of any encoding; bytes that are not UTF-8 go to the check of names as they are.
            output = self._output(process, time.monotonic() + deadline_s).decode("utf-8", "surrogateescape")
        except subprocess.TimeoutExpired:
            msg = f"Unpacking '{self._label}' took longer than {deadline_s:.0f} seconds; '{self._command}' hangs."
            raise ArchiveError(msg) from None
        finally:
            # In every case, cancellation included, so that no tool outlives this call; after success it does nothing.
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


def _blocks(label: str, text: str) -> Iterator[dict[str, str]]:
    """Yield the members in 7-Zip's technical listing: lines "Key = value", a blank line after each member."""
    # A name with a line break could forge the fields of another member.
    for block in text.split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            key, equals, value = line.partition(" =")
            if line.strip() and not equals:
                raise refuse_member(label, fields.get("Path", line), "its name contains a line break")
            # The first one counts: what follows could come from inside a name.
            fields.setdefault(key.strip(), value.removeprefix(" "))
        if "Path" in fields:
            yield fields


class _ByPackage:
    """What the two packages are given."""

    def __init__(self, module: Any, path: str, label: str) -> None:
        self._module = module
        self._path = path
        self._label = label


class _Py7zr(_ByPackage):
    def _open(self) -> Any:
        try:
            return self._module.SevenZipFile(self._path)
        except self._module.exceptions.PasswordRequired as error:
            raise _locked(self._label) from error
        # On damaged bytes its parser fails with any exception.
        except Exception as error:
            raise _archive_damaged(self._label, error) from error

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
                    # py7zr does not tell.
                    executable=False,
                )
                for info in archive.list()
            ]

    def unpack(self, folder: Path, *, largest: int, total: int) -> None:
        with self._open() as archive:
            try:
                archive.extractall(folder)
            except Exception as error:
                raise _archive_damaged(self._label, error) from error


class _RarFile(_ByPackage):
    def _open(self) -> Any:
        try:
            archive = self._module.RarFile(self._path)
        except self._module.Error as error:
            raise _archive_damaged(self._label, error) from error
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
                # rarfile would also call a 7-Zip without the codec, and report its failure as damage.
                if not any(map(shutil.which, _RAR_COMMANDS)):
                    raise _cannot_read(self._label, "rar", None) from error
                raise _archive_damaged(self._label, error) from error


def _full(label: str) -> NotEnoughSpaceError:
    return NotEnoughSpaceError(f"'{label}' does not fit on the disk when unpacked. Free some space, or choose another.")


def _archive_damaged(label: str, error: Exception) -> ColabstageError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return _full(label)
    return CorruptArchiveError(f"'{label}' is damaged ({error}). Copy or upload the archive again.")


# An archive without members is a few headers.
_EMPTY_BYTES = 128


class ToolArchiveTree(Tree):
    """The files in a 7z or rar archive. These formats pack many members into one stream, so all are unpacked at once.

    Args:
        source: the archive's bytes; closed with the tree.
        spool: a folder on a local disk with room for the content; created if need be.
        limits: how much content the listing may declare.
        cancellation: checked several times a second while 7-Zip works, and between the parts of a copy.

    Raises:
        MissingDependencyError: neither a tool nor a package that reads it is installed.
        ArchiveError: it is encrypted.
        CorruptArchiveError: it is truncated or damaged.
        UnsafeArchiveError: a member that no archive should have, or more content than `limits` allow.
        TargetNotWritableError: nothing can be written in `spool`.
    """

    unpacked: Path

    def __init__(
        self,
        source: ByteSource,
        *,
        spool: Path,
        limits: ArchiveLimits = DEFAULT_LIMITS,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._archive, self.label = source, source.label
        kind = tool_archive_kind(source.pread(HEAD_BYTES, 0))
        if kind is None:
            msg = f"'{source.label}' is neither a 7z nor a rar archive."
            raise CorruptArchiveError(msg)
        self.kind = kind
        # On the disk where the files are used, so that extraction can move them instead of copying.
        make_folder(spool)
        self.unpacked = temp_beside(spool / "unpacked")
        try:
            cancellation = cancellation or Cancellation()
            with _as_file(source, temp_beside(spool / "archive"), cancellation) as (path, handle):
                reader = find_reader(kind, path, source.label, handle, cancellation)
                self._files = self._unpack(reader, limits)
        except BaseException:
            remove_own(self.unpacked)
            raise
        self.entries = tuple(
            FileEntry(name, listed.size, (self.unpacked / name).lstat().st_mtime_ns, number, listed.executable)
            for number, (name, listed) in enumerate(sorted(self._files.items()))
        )

    def _unpack(self, reader: ArchiveReader, limits: ArchiveLimits) -> dict[str, Listed]:
        members = reader.members()
        if not members and self._archive.size > _EMPTY_BYTES:
            msg = f"'{self.label}' is damaged: no member can be found in it. Copy or upload the archive again."
            raise CorruptArchiveError(msg)
        total = sum(member.size for member in members)
        check_limits(self.label, len(members), total, self._archive.size, limits)
        # Checked by the listing, before the tool writes a byte.
        files, with_junk = _check_listed(self.label, members)
        self.unpacked.mkdir()
        reader.unpack(self.unpacked, largest=max((member.size for member in members), default=0), total=total)
        # And looked at again after: a listing may say one thing and the content another.
        _check_unpacked(self.label, self.unpacked, files, with_junk)
        return files

    def open(self, entry: FileEntry) -> ByteSource:
        """Return the bytes of one member; its checksum was verified when it was unpacked."""
        if entry.name not in self._files:
            raise unknown_entry(self.label, entry.name)
        # Nothing here is a link; one that appeared meanwhile is not followed.
        return FolderFile(self.unpacked / entry.name, self._files[entry.name].size, follow=False)

    def close(self) -> None:
        """Close the archive and remove what was unpacked. Calling it twice is fine."""
        remove_own(self.unpacked)
        self._archive.close()


@contextlib.contextmanager
def _as_file(source: ByteSource, temp: Path, cancellation: Cancellation) -> Iterator[tuple[str, int]]:
    """Give a path at which a tool finds the archive's bytes, and the handle that it depends on."""
    owners = owners_bytes(source)
    if isinstance(owners, LocalBytes):
        # By its handle, so that the tool reads the very file that was opened, even where it was renamed meanwhile.
        yield f"/proc/self/fd/{owners.fileno()}", owners.fileno()
        return
    try:
        with temp.open("xb") as copy:
            for offset, length in block_ranges(source.size, PIECE_BYTES):
                cancellation.check()
                copy.write(source.pread(length, offset))
            copy.flush()
            yield str(temp), copy.fileno()
    finally:
        remove_own(temp)


def _check_listed(archive: str, members: list[Listed]) -> tuple[dict[str, Listed], frozenset[str]]:
    """Return the files of the dataset by cleaned name, and the names of all that unpacking may leave, junk included.

    The rules of `entries` hold for all that is listed. Links are none that a tool should follow, so they are refused.
    """
    files: dict[str, Listed] = {}
    names: list[str] = []
    folders: list[str] = []
    for member in members:
        if member.is_folder:
            folders.append(clean_folder_name(archive, member.name))
            continue
        name = clean_member_name(archive, member.name)
        if member.is_link:
            raise refuse_member(archive, name, "it is a link, which is not read from such an archive")
        names.append(name)
        files[name] = member
    # Junk included: the tool unpacks all, and of two files of one name the later one would win.
    check_collisions(archive, names, folders)
    kept = {name: member for name, member in files.items() if not is_junk(name)}
    return kept, frozenset(files)


def _check_unpacked(archive: str, folder: Path, files: Mapping[str, Listed], with_junk: frozenset[str]) -> None:
    """Look at all that the tool left: nothing but the listed files, each with its size and checksum.

    Raises:
        UnsafeArchiveError: something else is there.
        CorruptArchiveError: a file is missing or not what was listed.
    """
    found = set(_walk(archive, folder))
    if extra := found - with_junk:
        msg = f"'{archive}' is refused: it unpacks to {min(extra)!r}, which it does not list."
        raise UnsafeArchiveError(msg)
    for name, listed in files.items():
        if name not in found:
            msg = f"'{archive}' is damaged: {name!r} was not unpacked. Copy or upload the archive again."
            raise CorruptArchiveError(msg)
        # Read once more: a tool may have stopped inside a file and said nothing.
        path = folder / name
        crc = size = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                size += len(piece)
                crc = isal_zlib.crc32(piece, crc)
        if size != listed.size or (listed.crc is not None and crc != listed.crc):
            msg = f"The member {name!r} of '{archive}' is damaged: it is not what the archive lists. Copy it again."
            raise CorruptArchiveError(msg)


def _walk(archive: str, folder: Path, prefix: str = "") -> Iterator[str]:
    with os.scandir(folder) as scan:
        for entry in scan:
            name = f"{prefix}{entry.name}"
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                # Archives made on other systems have folders without the right to enter them.
                os.chmod(entry.path, 0o755)  # noqa: PTH101  # an entry's path
                yield from _walk(archive, folder / entry.name, f"{name}/")
            elif stat.S_ISREG(mode):
                yield name
            else:
                msg = f"'{archive}' is refused: {name!r} unpacks to a link or a device."
                raise UnsafeArchiveError(msg)
