"""Which session a run belongs to: one small file in its folder, with a sign of life every half minute.

The file is overwritten in place: on Drive each replaced file goes to the trash, and would count against the quota. If
two machines write it at once, it holds either's text, or an unreadable mixture, which proves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from colabstage.errors import ColabstageError, RunInUseError, TargetExistsError
from colabstage.io.files import parse_json, pwrite_exactly
from colabstage.io.units import format_duration
from colabstage.io.workspace import owner_is_alive, owner_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Clock

NAME = "run.json"
BEAT_S = 30.0
# Three signs of life, plus the time that Drive may take to show them on another machine.
SILENT_S = 150.0
# By how much the clocks of two machines may differ. An older sign of life is old by any clock.
_CLOCKS_S = 300.0
_KIND = "colabstage run 1"
_BEGINNING = json.dumps({"kind": _KIND}).removesuffix("}").encode()
_NBYTES = 1024


@dataclass(frozen=True, slots=True)
class Lease:
    session: int
    owner: str
    """Which process it is, as `io.workspace.owner_token` names it."""
    host: str
    began: float
    """When it began, in seconds since 1970."""
    beat: float
    """When it last gave a sign of life."""
    ended: bool = False
    newest: str = ""
    """The version that it saved last."""
    epoch: int = 0
    step: int = 0

    def age(self) -> str:
        """Return the time since its last sign of life, by this machine's clock."""
        return format_duration(max(0.0, time.time() - self.beat))


def read_lease(folder: Path) -> Lease | None:
    """Return the lease in a run's folder; `None` if there is none, or an incomplete one."""
    file = folder / NAME
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    noted: Any = parse_json(text)
    # A kill may leave any beginning of it, a machine that died zeros.
    if noted is None and (_KIND.encode() in text or _BEGINNING.startswith(text.strip(b"\0 \n"))):
        return None
    if not isinstance(noted, dict) or noted.get("kind") != _KIND:
        msg = f"'{file}' was not written by a run, so nothing is saved in this folder. Choose another folder."
        raise TargetExistsError(msg)
    known = {field.name: noted[field.name] for field in fields(Lease) if field.name in noted}
    try:
        return Lease(**known)
    except TypeError:
        return None


def write_lease(folder: Path, lease: Lease) -> None:
    """Write a lease into a run's folder. All texts have one length, so overwriting leaves nothing of the old."""
    text = json.dumps({"kind": _KIND, **asdict(lease)}).encode().ljust(_NBYTES)
    assert text.startswith(_BEGINNING)
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        pwrite_exactly(handle, text, 0)
    finally:
        os.close(handle)


class Heartbeat:
    """Hold a run for this process: a thread gives signs of life until the run is left.

    Attributes:
        lost: the error for a run that another session has taken over; `None` while it is ours.
    """

    def __init__(self, folder: Path, session: int, newest: str, epoch: int, step: int) -> None:
        """Prepare the lease of this process, which resumes from the version `newest`. What leaves it in the end is
        registered before `begin`, which may be interrupted."""
        now, host = time.time(), socket.gethostname()
        lease = Lease(session, owner_token(), host, now, now, newest=newest, epoch=epoch, step=step)
        self.lost: RunInUseError | None = None
        self._folder, self._lease = folder, lease
        self._lock = threading.Lock()
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._work, name="colabstage-heartbeat", daemon=True)

    def begin(self) -> None:
        write_lease(self._folder, self._lease)
        self._thread.start()

    def check(self) -> None:
        there, ours = read_lease(self._folder), self._lease
        # Two that began at the same moment have one number; the one that wrote last continues.
        other = there is not None and (there.owner, there.began) != (ours.owner, ours.began)
        if there is not None and other and there.session >= ours.session:
            self.lost = RunInUseError(
                f"Session {there.session}, on {there.host}, has taken this run over; nothing more is saved here. Its "
                f"last version from here is {ours.newest or 'none'}. Enter it with take_over=True to take it back."
            )
            raise self.lost

    def note(self, newest: str, epoch: int, step: int) -> None:
        self._beat(newest=newest, epoch=epoch, step=step)

    def _beat(self, **changes: Any) -> None:
        with self._lock:
            self._lease = replace(self._lease, **changes, beat=time.time())
            # A failing mount will be noticed when saving.
            with contextlib.suppress(ColabstageError, OSError):
                self.check()
                write_lease(self._folder, self._lease)

    def leave(self) -> None:
        self._left.set()
        # The lease may have been written before an interrupt, and its end is noted by the thread.
        if self._thread.ident is None:
            self._thread.start()
        # A mount may never respond; to others, a session that is silent this long has left.
        self._thread.join(SILENT_S)

    def _work(self) -> None:
        while not self._left.wait(BEAT_S):
            self._beat()
        self._beat(ended=True)


def wait_until_free(folder: Path, *, take_over: bool, clock: Clock, notice: Callable[[str], object]) -> Lease | None:
    """Return the previous session's lease, once it is certain that it has left or fallen silent.

    A session of this machine whose process has ended is gone. One of another machine may have been terminated, or may
    be training right now, and its clock may be wrong: signs of life are timed by this machine's clock.
    """
    before = read_lease(folder)
    alive = before is not None and owner_is_alive(before.owner)
    if before is None or before.ended or take_over or alive is False:
        return before
    is_old = time.time() - before.beat > SILENT_S + _CLOCKS_S
    deadline = clock.now() + (0.0 if is_old else SILENT_S)
    if alive is None and not is_old:
        notice(
            f"Session {before.session} of this run, on {before.host}, gave a sign of life {before.age()} ago. "
            f"Listening for {format_duration(deadline - clock.now())} whether it still trains."
        )
    now = before
    while alive is None and clock.now() < deadline:
        clock.sleep(min(5.0, max(0.01, deadline - clock.now())))
        # While it is written, or Drive fetches it, it may be unreadable.
        now = read_lease(folder) or before
        if now.ended:
            return now
        alive = True if now.beat != before.beat else None
    if not alive:
        return before
    here = "here" if owner_is_alive(now.owner) else f"on {now.host}"
    msg = (
        f"'{folder}' is in use: session {now.session} trains {here}, with its last sign of life {now.age()} ago. Stop "
        "it there, or write take_over=True, which ends that session at its next step."
    )
    raise RunInUseError(msg)
