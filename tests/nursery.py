"""Starts processes that already have a framework and Jupyter imported, by forking, in tens of milliseconds.

`python nursery.py KIND SOCKET OWNER` starts a process that imports what is slow to import, and then forks whenever it
is asked to, until the process with the number OWNER is gone. KIND is one of `PRELOADED`.
`python nursery.py ask SOCKET ROLE ARGUMENT...` asks for a kernel, for nbclient or for a script, and ends as that does.
`python nursery.py compile` imports once what several processes would compile at the same time.
Nothing of colabstage is imported here, so that notebooks and scripts import it as they would anywhere.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_JUPYTER = (
    *("ipykernel.kernelapp", "ipykernel.debugger", "ipywidgets", "nbclient.cli"),
    *("matplotlib.pyplot", "h5py", "PIL.Image"),
)
# What a backend does not need is missing: a test checks that torch is imported only when needed.
PRELOADED = {
    "torch": ("torch.utils.data", "sklearn.datasets", "keras", *_JUPYTER),
    "tensorflow": ("tensorflow", "keras", *_JUPYTER),
}
# Also used by the servers and clusters of tests.
_OTHERS = ("moto.server", "s3fs", "distributed", "datasets", "jupyterlab.labapp", "playwright.sync_api")
_ANSWER = 16
_INTERRUPT = b"i"


def ask(address: str, role: str, arguments: list[str], folder: str, environment: dict[str, str]) -> int:
    """Run a kernel, nbclient or a script in a forked process with our standard streams; return its exit code.

    An interrupt is passed on, since Jupyter interrupts a kernel by a signal to the process that it started. If our
    parent dies, this process ends, and with it the forked one: a killed test leaves no kernels.
    """
    starter = os.pidfd_open(os.getppid())
    request = {"role": role, "arguments": arguments, "folder": folder, "environment": environment}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        signal.signal(signal.SIGINT, lambda *_: connection.send(_INTERRUPT))
        ready, _, _ = select.select([connection.fileno(), starter], [], [])
        answer = connection.recv(_ANSWER) if connection.fileno() in ready else b""
    return int(answer) if answer else 1


def main(kind: str, address: str, owner: int) -> None:
    """Import everything in a new process, and return once it listens; it forks on request until its owner is gone."""
    owners = os.pidfd_open(owner)
    reading, writing = os.pipe()
    if nursery := os.fork():
        os.close(writing)
        if os.read(reading, 1):
            return
        _, status = os.waitpid(nursery, 0)
        sys.exit(os.waitstatus_to_exitcode(status) or 1)
    os.close(reading)
    os.setsid()
    _import(*PRELOADED[kind])
    # Half of a short process's time went into looking for garbage among a million imported objects, and into the pages
    # that this copies.
    gc.collect()
    gc.freeze()
    threads = [path.read_text(encoding="ascii").strip() for path in Path("/proc/self/task").glob("*/comm")]
    # Arrow's allocator has its own thread, and can be forked.
    assert len(set(threads) - {"jemalloc_bg_thd"}) == 1, f"threads {threads}: what is forked from here would hang"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(writing, b"1")
        os.close(writing)
        # Our parent waits until these are closed.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        _fork_for_all(listening, owners)
    with suppress(OSError):
        Path(address).unlink()
        Path(address).parent.rmdir()
    os._exit(0)


def _import(*names: str) -> None:
    """Import those of these that are installed."""
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def _fork_for_all(listening: socket.socket, owner: int) -> None:
    """Fork a process for each request, until the owner has ended."""
    while True:
        ready, _, _ = select.select([listening.fileno(), owner], [], [])
        if owner in ready:
            return
        connection, _ = listening.accept()
        if not os.fork():
            listening.close()
            os.close(owner)
            _attend(connection)
        connection.close()
        with suppress(ChildProcessError):  # no request is in progress
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _attend(connection: socket.socket) -> None:
    """Fork once more, do what was requested in the new process, and respond with its exit code."""
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
    while ended not in select.select([ended, connection.fileno()], [], [])[0]:
        if connection.recv(1):
            os.kill(child, signal.SIGINT)
            continue
        # The requester died before the child, which is useful to nobody then.
        os.killpg(child, signal.SIGKILL)
        break
    _, status = os.waitpid(child, 0)
    with suppress(OSError):
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(role: str, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """Be the requested process, to its end."""
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import has looked for it in the nursery's environment
    os.chdir(folder)
    sys.path[:0] = first = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    # What these folders have is imported from there, and not what this process has imported from elsewhere.
    theirs = {entry.name.partition(".")[0] for place in first for entry in Path(place).glob("*")}
    for name in [name for name in sys.modules if name.partition(".")[0] in theirs]:
        del sys.modules[name]
    code = 1
    try:
        if role == "kernel":
            from ipykernel.kernelapp import launch_new_instance

            with suppress(ImportError):
                from matplotlib import pyplot

                # Jupyter draws each figure twice, of which the second is shown.
                pyplot.install_repl_displayhook = lambda: None
            sys.path.insert(0, "")  # as in any kernel: the notebook's folder
            launch_new_instance(argv=arguments)
        elif role == "nbclient":
            from jupyter_client.asynchronous.client import AsyncKernelClient
            from nbclient.cli import NbClientApp

            # Like a front end with a user: nbclient says that nobody can answer, and then Drive is not mounted.
            AsyncKernelClient.allow_stdin = property(lambda _: True, lambda *_: None)  # type: ignore[assignment]
            NbClientApp.launch_instance(argv=arguments)
        else:
            sys.argv[:] = arguments
            runpy.run_path(arguments[0], run_name="__main__")
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
    if sys.argv[1] == "ask":
        sys.exit(ask(sys.argv[2], sys.argv[3], sys.argv[4:], str(Path.cwd()), dict(os.environ)))
    if sys.argv[1] == "compile":
        _import(*_JUPYTER, *_OTHERS)
        sys.exit()
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
