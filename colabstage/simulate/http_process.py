"""The practice web server in a process of its own, so that timing a client does not share its interpreter.

with serve_apart({"big.bin": path}, WebKnobs(latency_s=0.05, bytes_per_s=20e6)) as base:
    open_http(f"{base}/big.bin")
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from colabstage.errors import NotSupportedHereError
from colabstage.simulate.http_knobs import WebFault, WebKnobs
from colabstage.simulate.http_server import WebServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_START_TIMEOUT_S = 30.0


@contextlib.contextmanager
def serve_apart(
    files: Mapping[str, Path], knobs: WebKnobs | None = None, faults: tuple[WebFault, ...] = ()
) -> Iterator[str]:
    """Serve files from another process while the `with` block lasts; gives `"http://127.0.0.1:PORT"`."""
    order = {
        "files": {name: str(path.resolve()) for name, path in files.items()},
        "knobs": dataclasses.asdict(knobs or WebKnobs()),
        "faults": [dataclasses.asdict(fault) for fault in faults],
    }
    command = [sys.executable, "-m", "colabstage.simulate.http_process", json.dumps(order)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            ready = select.select([server.stdout], [], [], _START_TIMEOUT_S)[0]
            address = server.stdout.readline().strip() if ready else ""
            if not address:
                msg = f"The practice web server did not start within {_START_TIMEOUT_S:.0f} s; see its output above."
                raise NotSupportedHereError(msg)
            yield address
        finally:
            # The end of its input tells the server to stop, also when this process dies.
            server.stdin.close()
            try:
                server.wait(_START_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()


def _main(text: str) -> None:
    order = json.loads(text)
    faults = tuple(WebFault.from_json(fault) for fault in order["faults"])
    files = {name: Path(path) for name, path in order["files"].items()}
    with WebServer(files, knobs=WebKnobs.from_json(order["knobs"]), faults=faults) as server:
        print(f"http://127.0.0.1:{server.port}", flush=True)
        # A stop meant for whoever started us comes as the end of input; Ctrl-C reaches both.
        with contextlib.suppress(KeyboardInterrupt):
            sys.stdin.read()


if __name__ == "__main__":
    _main(sys.argv[1])
