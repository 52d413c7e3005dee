"""Processes that start with torch and Jupyter imported: forked from one that has them, in tens of milliseconds.

`python nursery.py SOCKET` imports what notebooks spend seconds importing, and then forks whenever it is asked to.
`python nursery.py SOCKET kernel ARGUMENT...` asks for a kernel, and ends as that does: what a kernelspec names.
Nothing of colabstage is imported here, so that notebooks import it as they would anywhere.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

PRELOADED = (
    "ipykernel.kernelapp",
    "nbclient.cli",
    "torch.utils.data",
    "sklearn.datasets",
    "matplotlib.pyplot",
    "h5py",
    "PIL.Image",
)
_ANSWER = 16


def ask(address: str, role: str, arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run a kernel or nbclient in a forked process with our standard streams; returns its exit code."""
    request = {"role": role, "arguments": arguments, "folder": folder, "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        answer = connection.recv(_ANSWER)
    return int(answer) if answer else 1


def main(address: str) -> None:
    """Import, say so by listening, and fork until killed."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)
    threads = [path.read_text(encoding="ascii").strip() for path in Path("/proc/self/task").glob("*/comm")]
    # Arrow's allocator has a thread of its own, and knows how to be forked.
    assert len(set(threads) - {"jemalloc_bg_thd"}) == 1, f"threads {threads}: what is forked from here would hang"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{address}.new")
        listening.listen()
        Path(f"{address}.new").rename(address)
        while True:
            connection, _ = listening.accept()
            if not os.fork():
                listening.close()
                _attend(connection)
            connection.close()
            with suppress(ChildProcessError):  # nobody attends any more
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _attend(connection: socket.socket) -> None:
    """Fork once more, do in the new process what is asked for, and answer with its exit code."""
    data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += connection.recv(1 << 20)
    child = os.fork()
    if not child:
        connection.close()
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        _become(**json.loads(data))
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(child)
    # Whoever asked may be gone before the child is: then the child is of no use to anybody.
    ready, _, _ = select.select([ended, connection.fileno()], [], [])
    if ended not in ready:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(role: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the process that was asked for, to its end."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path[:0] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    code = 1
    try:
        if role == "kernel":
            from ipykernel.kernelapp import launch_new_instance

            sys.path.insert(0, "")  # as in any kernel: the notebook's folder
            launch_new_instance(argv=arguments)
        else:
            from nbclient.cli import NbClientApp

            NbClientApp.launch_instance(argv=arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - said where the process's own words go
        sys.excepthook(*sys.exc_info())
    finally:
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(ask(sys.argv[1], sys.argv[2], sys.argv[3:], str(Path.cwd()), dict(os.environ)))
    main(sys.argv[1])
