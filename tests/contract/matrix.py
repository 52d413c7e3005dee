"""The walk that all matrices share: disturb a call at one moment after the other, and check what must hold."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from copy import copy
from pathlib import Path

from tests.contract.cases import CASES, THEIRS, Case, Found, make_home, rewrite
from tests.support.invariants import Home, contents, differences
from tests.support.moments import Moment, Processes, Ran
from tests.support.staged import timeless

# The process that owns unfinished work, and the work's number in it.
_OWNER = re.compile(r"-[0-9a-f]+-\d+\.\d+(?=\.\w+(?:/|$))")


def state(home: Path) -> dict[str, object]:
    """Return all names and bytes on the disk, except owners of unfinished work and times in records."""
    found: dict[str, bytes] = {}
    for path in home.rglob("*"):
        name = _OWNER.sub("", str(path.relative_to(home)))
        found[name] = bytes(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
    return {**timeless(found)}


class Walk:
    """A case in a folder of its own, which is brought back to its state before the call as often as needed."""

    def __init__(self, name: str, folder: Path, processes: Processes, address: str) -> None:
        self.name = name
        self.case: Case = CASES[name]
        self.home = folder / "home"
        self._template = folder / "template"
        self._processes = processes
        make_home(self.home, self.case, address, lambda: self.expect(self.call("before")))
        shutil.copytree(self.home, self._template, symlinks=True)
        # Elsewhere, so that what is found out once about a folder is not known yet.
        elsewhere = shutil.copytree(self.home, folder / "elsewhere", symlinks=True)
        processes.warm_up(name, [name, str(elsewhere), "call"], COLABSTAGE_SYSTEM_ROOT=str(elsewhere))
        shutil.rmtree(elsewhere)
        user = Home(self.home, theirs=THEIRS)
        self.was: Found = self.case.found(self.home)
        # All that counts for any moment: one that is far beyond them needs no call to show that it is never reached.
        every = Moment(0, "fail", str(self.home))
        self._most = 2 * self.expect(self.call(moment=every)).reached
        self.meant: Found = self.case.found(self.home)
        self._all_files = contents(self.home / "out")
        assert self.was != self.meant
        user.check(finished=True, about=f"{name}, undisturbed")
        self._theirs, self._last = THEIRS, self.meant
        self._continued: list[dict[str, object]] = []

    def changing(self) -> Walk:
        """The same case where the user's data may be rewritten during the call: the next call comes to what it is
        then."""
        walk = copy(self)
        walk._theirs, walk._continued = [name for name in THEIRS if name != "mine"], []
        walk.reset()
        rewrite(str(walk.home / "mine"))
        walk.expect(walk.call())
        walk._last, walk._all_files = walk.case.found(walk.home), contents(walk.home / "out")
        return walk

    def call(self, what: str = "call", moment: Moment | None = None) -> Ran:
        """Make the case's call, the calls before it, or the one after a failure."""
        environment = {"COLABSTAGE_SYSTEM_ROOT": str(self.home)}
        return self._processes.run([self.name, str(self.home), what], moment, **environment)

    def expect(self, ran: Ran, about: str = "") -> Ran:
        """Fail if a call did not succeed."""
        assert ran.error is None, f"{self.name} {about}: {ran.error}"
        return ran

    def reset(self) -> Home:
        """Restore the state before the call."""
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.copytree(self._template, self.home, symlinks=True, dirs_exist_ok=True)
        return Home(self.home, theirs=self._theirs)

    def check_disturbed(self, user: Home, ran: Ran, about: str) -> None:
        """Check what must hold after a disturbed call: it failed with a typed error, was killed, or succeeded."""
        about = f"{self.name}, {about}"
        found, allowed = self.case.found(self.home), [self.was, self.meant, self._last]
        if ran.error is None and not ran.killed:
            needed = {name: value for name, value in found.items() if name not in self.case.optional}
            goals = [
                {name: goal[name] for name in goal.keys() - self.case.optional} for goal in (self.meant, self._last)
            ]
            assert needed in goals, f"{about}: reported a success, but it is not what was meant"
        elif ran.error is not None:
            assert ran.error.typed, f"{about}: {ran.error}"
        user.check(
            finished=False, found=found, expected=allowed if self.case.never_gone else [*allowed, {}], about=about
        )

    def check_again(self, user: Home, about: str) -> None:
        """Repeat the call, and check that the result is that of an undisturbed one.

        Done once for each state that a disturbed call leaves, since many moments leave the same one.
        """
        left = state(self.home)
        if left in self._continued:
            return
        self._continued.append(left)
        about = f"{self.name}, {about}, and called again"
        self.expect(self.call("again"), about)
        user.check(finished=True, found=self.case.found(self.home), expected=[self._last], about=about)
        found = contents(self.home / "out")
        # A record of rows holds the source files' inodes, which differ in each home, so only its length is compared.
        records = [name for name in found.keys() & self._all_files if name.endswith(".rows")]
        assert {name: len(found[name]) for name in records} == {name: len(self._all_files[name]) for name in records}, (
            about
        )
        others = [name for name in differences(found, self._all_files) if name not in records]
        if self._last is self.meant:  # if the data changed, an older version may be there too
            assert not others, f"{about}: other files than of an undisturbed call: {others}"

    def at_each(self, moments: Iterable[Moment]) -> int:
        """Disturb the call at one moment after the other until one lies beyond its end; return how many were
        reached."""
        for count, moment in enumerate(moments):
            if moment.at > self._most:
                return count
            user = self.reset()
            ran, about = self.call(moment=moment), f"{moment.what} {moment.number or ''} at {moment.at}"
            self.check_disturbed(user, ran, about)
            if moment.what == "fail":
                assert not list(self.home.rglob("*.draft")), f"{self.name}, {about}: a note is half written"
            if not ran.is_at(moment):
                return count
            self.check_again(user, about)
        msg = f"{self.name}: the call did not end within these moments"
        raise AssertionError(msg)
