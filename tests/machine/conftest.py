"""Mounts that misbehave: a FUSE mount of any type whose client never responds."""

import contextlib
import ctypes
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest


class SilentMount:
    """A mounted file system whose client reads every request and responds to none, until it is killed."""

    def __init__(self, place: Path, fstype: str) -> None:
        self.place = place
        self._libc = ctypes.CDLL(None, use_errno=True)
        try:
            self._handle = os.open("/dev/fuse", os.O_RDWR)
        except OSError as error:
            pytest.skip(
                f"/dev/fuse cannot be opened ({error.strerror}): load the fuse module, run with the right to mount"
            )
        options = f"fd={self._handle},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        if self._libc.mount(b"practice", os.fsencode(place), fstype.encode(), 0, options.encode()):
            os.close(self._handle)
            pytest.skip(f"mounting is not allowed here ({os.strerror(ctypes.get_errno())}): run as root")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._greet)
        self._thread.start()

    def _greet(self) -> None:
        """Respond to the kernel's greeting (FUSE_INIT, protocol 7.23), as any client must, and to nothing else."""
        unique = struct.unpack_from("<IIQ", os.read(self._handle, 1 << 18))[2]
        body = struct.pack("<IIIIHHIIHHIIHH", 7, 23, 0, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0) + b"\0" * 20
        os.write(self._handle, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)
        self._stop.wait(100)

    def kill(self) -> None:
        """End the client; the mount stays, dead."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            os.close(self._handle)

    def unmount(self) -> None:
        """Remove the mount."""
        self.kill()
        self._libc.umount2(os.fsencode(self.place), 2)


class MakeSilentMount(Protocol):
    """Makes a silent mount."""

    def __call__(self, place: Path, fstype: str) -> SilentMount: ...


@pytest.fixture
def silent_mount() -> Iterator[MakeSilentMount]:
    """Mount file systems that never respond; they are removed at the end."""
    with contextlib.ExitStack() as stack:

        def make(place: Path, fstype: str) -> SilentMount:
            place.mkdir(parents=True, exist_ok=True)
            mount = SilentMount(place, fstype)
            stack.callback(mount.unmount)
            return mount

        yield make
