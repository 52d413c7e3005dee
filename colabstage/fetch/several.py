"""Several sources opened to be fetched as they are: files under their names, folders under theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from colabstage.fetch.identity import identify_many
from colabstage.fetch.loose import LooseFile, LooseFiles, name_loose_files
from colabstage.fetch.opening import Opened, remote_opener
from colabstage.fetch.sources import LocalSource, WebSource, local_source
from colabstage.machine.mounts import is_slow_mount, require_answer
from colabstage.trees.joined import JoinedTree, Joining, distinct_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from colabstage.fetch.identity import SourceIdentity
    from colabstage.fetch.opening import Opener
    from colabstage.fetch.remote import RemoteFile
    from colabstage.fetch.sources import ManySource, SingleSource
    from colabstage.trees.tree import Tree


class OpenedParts:
    """The parts of a list, as one tree.

    `tree`: their files. `identity`: their state. `notes`: for the report.
    `slowest`: a part that stands for how they are reached.
    """

    def __init__(self, source: ManySource, opener: Opener, stack: ExitStack) -> None:
        """Open all parts; `stack` closes them.

        Raises:
            As `Opener.open`.
        """
        require_answer(*(part.path for part in source.parts if isinstance(part, LocalSource)))
        self._opened = [self._open(part, opener, stack) for part in source.parts]
        self.notes = [note for part in self._opened for note in part.notes]
        self.slowest = next((part for part in self._opened if part.slow), self._opened[0])
        files = [part for part in self._opened if part.tree is None]
        folders = [part for part in self._opened if part.tree is not None]
        names = name_loose_files([_address(part) for part in files])
        loose = LooseFiles(source.label, [LooseFile(*pair) for pair in zip(names, map(_opener, files), strict=True)])
        of_files = dict(zip(map(id, files), loose.identities([part.source.address for part in files]), strict=True))
        self.identity: SourceIdentity = identify_many(
            [of_files.get(id(part)) or part.identify() for part in self._opened], address=source.address
        )
        tops = sorted({name.partition("/")[0] for name in names})
        stems = distinct_names([*tops, *(part.source.name for part in folders)])[len(tops) :]
        trees: list[Tree] = [loose, *(part.tree for part in folders if part.tree is not None)]
        parts = list(zip(("", *stems), trees, strict=True))
        self.tree: Tree = JoinedTree(source.label, parts, joining=Joining(("", *stems), "")) if folders else loose

    def discard(self) -> None:
        """Remove what was brought whole: it has been made use of."""
        for part in self._opened:
            part.discard()

    @staticmethod
    def _open(source: SingleSource, opener: Opener, stack: ExitStack) -> Opened:
        # There may be thousands of files, and each is opened when it is read.
        if isinstance(source, WebSource):
            return Opened(source, "http", slow=True)
        if isinstance(source, LocalSource) and source.path.is_file():
            slow = is_slow_mount(source.path)
            return Opened(source, "mount" if slow else "local disk", slow, path=source.path)
        opened = opener.open(source)
        stack.callback(opened.close)
        return opened


def _address(part: Opened) -> str:
    return part.path.name if part.movable and part.path is not None else part.source.label


def _opener(part: Opened) -> Callable[[], RemoteFile]:
    return remote_opener(local_source(part.path) if part.movable and part.path is not None else part.source)
