"""A service that fsspec knows, as a place to write to.

No service of this kind has an atomic rename, and few have locks. But an object appears under its name when all of it
has arrived, and most services can be asked to write one only where there is none.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

from colabstage.errors import SourceError, SourceNotFoundError, TargetExistsError, TargetNotWritableError
from colabstage.sources.object_store import ObjectStore
from colabstage.sources.objects_fsspec import mtime_ns_of, size_of, version_of
from colabstage.sources.store_adapters import AsyncAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

# Beside what a file's length allows for.
_PATIENCE_S = 600.0
_SLOWEST_BYTES_PER_S = 200_000


class StoredObject(NamedTuple):
    """One object as its service describes it."""

    size: int
    """Bytes."""
    mtime_ns: int
    """When it was written, in nanoseconds since 1970; 0 where the service does not say."""
    version: str
    """A text that is another one when the content is; "" where there is none."""


def _stored(info: Mapping[str, Any]) -> StoredObject:
    return StoredObject(size_of(info) or 0, mtime_ns_of(info), version_of(info))


class WritableStore(ObjectStore):
    """A service that is written to. Paths are the backend's own, as `path` is.

    Every method raises `TargetNotWritableError` where the service does not do it.
    """

    def exists(self, path: str) -> bool:
        """Return whether there is an object, a folder, or a bucket."""
        try:
            self._ask(lambda fs: self.backend.adapter.info(fs, path))
        except SourceNotFoundError:
            # The s3fs of Colab's image knows nothing of an empty bucket; asked whether there is one, it looks for it.
            # Asked last, because fsspec answers no as well where a login is missing, which the first question says.
            is_bucket = bool(path) and "/" not in path.strip("/")
            return is_bucket and bool(self._ask(lambda fs: self.backend.adapter.exists(fs, path)))
        return True

    def look(self, path: str) -> StoredObject | None:
        """Return the facts on an object; `None` where there is none."""
        try:
            info = self._ask(lambda fs: self.backend.adapter.info(fs, path))
        except SourceNotFoundError:
            return None
        return None if info.get("type") == "directory" else _stored(info)

    def objects(self, folder: str) -> dict[str, StoredObject]:
        """Return what is directly in a folder now, by name; nothing where there is no such folder."""

        def rows(fs: Any) -> list[dict[str, Any]]:
            # fsspec keeps listings, and others write there too.
            fs.invalidate_cache()
            return self.backend.adapter.list_folder(fs, folder)

        try:
            found = self._ask(rows)
        except SourceNotFoundError:
            return {}
        return {str(row["name"]).rpartition("/")[2]: _stored(row) for row in found if row.get("type") == "file"}

    def size(self, path: str) -> int | None:
        """Return length of an object in bytes; `None` where there is none."""
        found = self.look(path)
        return None if found is None else found.size

    def content(self, path: str, size: int | None = None) -> bytes | None:
        """Return all of a small object, by one request where its size is known; `None` where there is none."""
        try:
            return b"".join(self.read(path, 0, size))
        except SourceNotFoundError:
            return None

    def put(
        self,
        file: Path,
        path: str,
        *,
        create: bool = False,
        advance: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Write a local file to an object, and make sure that all of it arrived.

        Args:
            file: what to write.
            path: where to; what is there is replaced, unless `create`.
            create: write only where nothing is; where the service knows that question, it decides in one step.
            advance: told of bytes that were sent; what it raises ends the upload.

        Raises:
            TargetExistsError: `create`, and there is an object.
        """
        from fsspec.callbacks import Callback

        class Told(Callback):  # type: ignore[misc]
            def relative_update(self, inc: int = 1) -> None:
                advance(inc)

        length = file.stat().st_size
        deadline_s = _PATIENCE_S + length / _SLOWEST_BYTES_PER_S

        def put(fs: Any, **mode: Any) -> None:
            # Not every backend without a loop takes one.
            told: dict[str, Any] = {"callback": Told()} if self._has_loop else {}
            self._make_folder_of(fs, path)
            self._call(fs, "put_file", lambda send: send(str(file), path, **told, **mode), deadline_s)

        self._put(put, path, create=create)
        if (there := self.size(path)) != length:
            msg = f"Of '{file}', {length:,} bytes long, {there} bytes arrived as '{path}' at '{self.label}'."
            raise TargetNotWritableError(msg)

    def put_bytes(self, content: bytes, path: str, *, create: bool = False) -> None:
        """Write a small object; as `put`."""

        def put(fs: Any, **mode: Any) -> None:
            self._make_folder_of(fs, path)
            self._call(fs, "pipe_file", lambda send: send(path, content, **mode))

        self._put(put, path, create=create)

    def move(self, path: str, to: str) -> None:
        """Give an object another name, without its bytes coming here where the service can do that."""
        from fsspec.spec import AbstractFileSystem

        def move(fs: Any) -> None:
            if self._has_loop or type(fs).mv is AbstractFileSystem.mv:
                self._call(fs, "cp_file", lambda copy: copy(path, to))
                self._call(fs, "rm_file", lambda remove: remove(path))
            else:
                self._call(fs, "mv", lambda move: move(path, to))

        self._do(move, to)

    def remove(self, path: str) -> None:
        """Remove an object, if it is there."""
        if self.exists(path):
            self._do(lambda fs: self._call(fs, "rm_file", lambda remove: remove(path)), path)

    def remove_folder(self, path: str) -> None:
        """Remove a folder that is empty; where folders are no more than beginnings of names there is none."""
        if not self._has_loop and self.exists(path):
            self._do(lambda fs: self._call(fs, "rmdir", lambda remove: remove(path)), path)

    def _make_folder_of(self, fs: Any, path: str) -> None:
        if not self._has_loop:
            self._call(fs, "makedirs", lambda make: make(path.rpartition("/")[0], exist_ok=True))

    def _call(self, fs: Any, verb: str, ask: Callable[[Any], Any], seconds: float = _PATIENCE_S) -> None:
        self.backend.adapter.call(fs, verb, ask, seconds=seconds)

    @property
    def _has_loop(self) -> bool:
        return isinstance(self.backend.adapter, AsyncAdapter)

    def _put(self, put: Callable[..., None], path: str, *, create: bool) -> None:
        """Write with the backend's own `mode="create"` where it has that, otherwise after a look."""
        if not create:
            self._do(put, path)
            return
        if self._creates:
            try:
                self._do(lambda fs: put(fs, mode="create"), path)
            except TargetNotWritableError as error:
                if self.exists(path):
                    raise self._occupied(path) from error
                # The service may not know the condition.
            else:
                return
        if self.exists(path):
            raise self._occupied(path)
        self._do(put, path)

    @property
    def _creates(self) -> bool:
        """Tell whether the backend can be asked to write only where nothing is."""
        methods = ("_put_file", "_pipe_file") if self._has_loop else ("put_file", "pipe_file")
        return all("mode" in inspect.signature(getattr(self._class, name)).parameters for name in methods)

    def _occupied(self, path: str) -> TargetExistsError:
        msg = f"'{path}' at '{self.label}' appeared there meanwhile, so nothing was written. Try again."
        return TargetExistsError(msg)

    def _do(self, work: Callable[[Any], None], path: str) -> None:
        try:
            self._ask(work)
        except SourceError as error:
            msg = f"'{path}' cannot be written at '{self.label}': {error}"
            raise TargetNotWritableError(msg) from error
