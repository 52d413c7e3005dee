"""Which session a run belongs to: one small file in its folder, with a sign of life every half minute.

The file is overwritten in place: on Drive each file that is replaced goes to the trash, and would count against the
quota. A machine that writes it while another one does leaves either one's text, or one that cannot be read and is no
proof of anybody.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from colabstage.errors import RunInUseError, TargetExistsError
from colabstage.io.files import json_text, parse_json, pwrite_exactly
from colabstage.io.units import format_duration
from colabstage.io.workspace import owner_is_alive, owner_token

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from colabstage.io.progress import Clock

NAME = "run.json"
BEAT_S = 30.0
# Three signs of life, and what Drive may take to show them on another machine.
SILENT_S = 150.0
_KIND = "colabstage run 1"
_NBYTES = 1024


@dataclass(frozen=True, slots=True)
class Lease:
    """What a session says about itself."""

    session: int
    """Its number, from 1."""
    owner: str
    """Which process it is, as `io.workspace.owner_token` names it."""
    host: str
    """The machine's name."""
    began: float
    """When it began, in seconds since 1970."""
    beat: float
    """When it last gave a sign of life."""
    ended: bool = False
    """Whether it has left."""
    newest: str = ""
    """The version that it saved last, or began with."""
    epoch: int = 0
    """The epoch of that version."""
    step: int = 0
    """Its steps."""

    def age(self) -> str:
        """Say how long its last sign of life is ago, by this machine's clock."""
        return format_duration(max(0.0, time.time() - self.beat))


def read_lease(folder: Path) -> Lease | None:
    """Return what is noted in a run's folder; `None` if there is nothing, or nothing whole.

    Raises:
        TargetExistsError: there is a file of that name that is no run's.
    """
    file = folder / NAME
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        noted: Any = parse_json(text)
    except ValueError:
        noted = {"kind": _KIND} if _KIND.encode() in text or not text.strip() else None
    if not isinstance(noted, dict) or noted.get("kind") != _KIND:
        msg = f"'{file}' was not written by a run, so nothing is saved in this folder. Choose another folder."
        raise TargetExistsError(msg)
    known = {field.name: noted[field.name] for field in fields(Lease) if field.name in noted}
    try:
        return Lease(**known)
    except TypeError:
        return None


def write_lease(folder: Path, lease: Lease) -> None:
    """Note a lease in a run's folder. Each text is as long as any, so that one over another leaves nothing of it."""
    text = json_text({"kind": _KIND, **asdict(lease)}).encode().ljust(_NBYTES)
    handle = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        pwrite_exactly(handle, text, 0)
    finally:
        os.close(handle)


def new_lease(session: int, *, newest: str = "", epoch: int = 0, step: int = 0) -> Lease:
    """Return the lease of this process, which begins with a version, if one was restored."""
    now = time.time()
    return Lease(
        session, owner_token(), socket.gethostname(), began=now, beat=now, newest=newest, epoch=epoch, step=step
    )


def wait_until_free(folder: Path, *, take_over: bool, clock: Clock, notice: Callable[[str], object]) -> Lease | None:
    """Return the lease of the session before, once it is certain that this has left or fallen silent.

    A session of this machine whose process has ended is gone. One of another machine may have been taken away, or train
    at this very moment: it is listened to for as long as three signs of life take.

    Raises:
        RunInUseError: it is there, and `take_over` is not wanted.
    """
    before = read_lease(folder)
    if before is None or before.ended or take_over:
        return before
    alive = owner_is_alive(before.owner)
    if alive is False:
        return before
    deadline = clock.now() + SILENT_S - min(SILENT_S, max(0.0, time.time() - before.beat))
    if alive is None and clock.now() < deadline:
        notice(
            f"Session {before.session} of this run, on {before.host}, gave a sign of life {before.age()} ago. "
            f"Listening for {format_duration(deadline - clock.now())} whether it still trains."
        )
    now: Lease | None = before
    while alive is None and clock.now() < deadline:
        clock.sleep(min(5.0, max(0.01, deadline - clock.now())))
        now = read_lease(folder)
        if now is None or now.ended:
            return now or before
        if now.beat != before.beat:
            alive = True
    if not alive or now is None:
        return before
    here = "in another process here" if owner_is_alive(now.owner) else f"on {now.host}"
    msg = (
        f"'{folder}' is in use: session {now.session} trains {here}, with its last sign of life {now.age()} ago. Stop "
        "it there, or write take_over=True, which ends that session at its next step."
    )
    raise RunInUseError(msg)
