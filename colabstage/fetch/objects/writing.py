"""Putting files into buckets and onto file servers: all that fsspec can write to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from colabstage.errors import SourceError, SourceNotFoundError, TargetNotWritableError
from colabstage.fetch.objects.dialects import AsyncDialect, call_within, on_loop
from colabstage.fetch.objects.store import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Beside what a file's length allows for.
_PATIENCE_S = 600.0
_SLOWEST_BYTES_PER_S = 200_000


class WritableStore(ObjectStore):
    """A service that is written to. Paths are the backend's own, as `path` is.

    Every method raises `TargetNotWritableError` where the service does not do it.
    """

    def exists(self, path: str) -> bool:
        """Whether there is an object, or a folder."""
        try:
            self._ask(lambda fs: self.backend.dialect.info(fs, path))
        except SourceNotFoundError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """Length of an object in bytes; `None` where there is none."""
        try:
            return int(self._ask(lambda fs: self.backend.dialect.info(fs, path))["size"])
        except SourceNotFoundError:
            return None

    def content(self, path: str) -> bytes | None:
        """All of a small object; `None` where there is none."""
        try:
            return b"".join(self.read(path, 0, None))
        except SourceNotFoundError:
            return None

    def put(self, file: Path, path: str) -> None:
        """Write a local file to an object, in place of any that is there, and make sure that all of it arrived."""
        length = file.stat().st_size
        deadline_s = _PATIENCE_S + length / _SLOWEST_BYTES_PER_S

        def put(fs: Any) -> None:
            if self._has_loop:
                on_loop(fs, fs._put_file(str(file), path), deadline_s)
                return
            call_within(deadline_s, lambda: fs.makedirs(path.rpartition("/")[0], exist_ok=True))
            call_within(deadline_s, lambda: fs.put_file(str(file), path))

        self._do(put, path)
        if (there := self.size(path)) != length:
            msg = f"Of '{file}', {length:,} bytes long, {there} bytes arrived as '{path}' at '{self.label}'."
            raise TargetNotWritableError(msg)

    def move(self, path: str, to: str) -> None:
        """Give an object another name, without its bytes coming here where the service can do that."""
        from fsspec.spec import AbstractFileSystem

        def move(fs: Any) -> None:
            if self._has_loop:
                on_loop(fs, fs._cp_file(path, to), _PATIENCE_S)
                on_loop(fs, fs._rm_file(path), _PATIENCE_S)
            elif type(fs).mv is AbstractFileSystem.mv:
                call_within(_PATIENCE_S, lambda: fs.cp_file(path, to))
                call_within(_PATIENCE_S, lambda: fs.rm_file(path))
            else:
                call_within(_PATIENCE_S, lambda: fs.mv(path, to))

        self._do(move, to)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        if not self.exists(path):
            return

        def remove(fs: Any) -> None:
            if self._has_loop:
                on_loop(fs, fs._rm_file(path), _PATIENCE_S)
            else:
                call_within(_PATIENCE_S, lambda: fs.rm_file(path))

        self._do(remove, path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; where folders are no more than beginnings of names there is none."""
        if not self._has_loop and self.exists(path):
            self._do(lambda fs: call_within(_PATIENCE_S, lambda: fs.rmdir(path)), path)

    @property
    def _has_loop(self) -> bool:
        return isinstance(self.backend.dialect, AsyncDialect)

    def _do(self, work: Callable[[Any], None], path: str) -> None:
        try:
            self._ask(work)
        except SourceError as error:
            msg = f"'{path}' cannot be written at '{self.label}': {error}"
            raise TargetNotWritableError(msg) from error
