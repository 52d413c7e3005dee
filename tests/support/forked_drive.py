"""Clients of simulated Drives, forked from the test's process: to start a Python takes longer than most tests."""

import ctypes
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from typing import IO, Any, NoReturn

import pytest

_PR_SET_PDEATHSIG = 1
# What the variables of `simulated_drive.drive` mean to a process that starts: libc's numbers for `mallopt`.
_ALLOCATOR = {-8: 2, -3: 1 << 25, -1: 1 << 28}


class ForkedClient(subprocess.Popen[bytes]):
    """A client that was not started by a command line; it is waited for and stopped as any other."""

    def __init__(self, config: dict[str, Any], log: IO[bytes]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FUSE_LIBRARY_NAME", "fuse3")  # which importing it would leave behind
            from simulated_drive.server import Server  # once for all clients of the process

        self.args, self.returncode = ["forked"], None
        self.stdin = self.stdout = self.stderr = None
        self._waitpid_lock, self._child_created = threading.Lock(), True
        by_main = threading.current_thread() is threading.main_thread()
        self.pid = os.fork()
        if not self.pid:
            _serve(Server, config, log.fileno(), ends_with_thread=by_main)


def _serve(server: type[Any], config: dict[str, Any], log: int, *, ends_with_thread: bool) -> NoReturn:
    """Be the client, with none of the test's files."""
    code = 1
    try:
        os.setsid()
        if ends_with_thread:
            # A stopped client does not notice that pytest's timeout ended the test's process, which in turn cannot end
            # before its calls on the mount have: the run would wait for both.
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for number, kept in enumerate((os.open(os.devnull, os.O_RDONLY), log, log)):
            os.dup2(kept, number)
        os.closerange(3, config["control_fd"])
        os.closerange(config["control_fd"] + 1, os.sysconf("SC_OPEN_MAX"))
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.stdout = sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - to the end
        logging.basicConfig(level=logging.WARNING, force=True)
        for option, value in _ALLOCATOR.items():
            ctypes.CDLL(None).mallopt(option, value)
        gc.freeze()
        server(config).run()
        code = 0
    except BaseException:  # noqa: BLE001 - said in the client's log
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)
