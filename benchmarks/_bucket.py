"""moto's S3 as a bucket that is far away: a process of its own, a latency before each answer, one rate for all of them.

    python -m benchmarks._bucket LATENCY_S BYTES_PER_S

It says its address, and serves until its input ends. Writing to it takes no time but its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulated_drive.knobs import Meter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BUCKET = "data"
LOGIN = {
    "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SENT = "/_sent"
_PIECE = 1 << 18
_END_S = 10.0


class Bucket:
    """A bucket that is served elsewhere; `login` is the environment in which its addresses lead to it."""

    def __init__(self, address: str) -> None:
        import boto3

        self._address = address
        # One name for each library that asks for it.
        self.login = {**LOGIN, "AWS_ENDPOINT_URL": address, "S3_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}
        self._client = boto3.client(
            "s3",
            endpoint_url=address,
            aws_access_key_id=LOGIN["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=LOGIN["AWS_SECRET_ACCESS_KEY"],
            region_name=LOGIN["AWS_DEFAULT_REGION"],
        )
        self._client.create_bucket(Bucket=BUCKET)

    def put(self, folder: Path, prefix: str) -> int:
        """Write all files of a folder below a prefix; return their bytes."""
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in files:
            self._client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(folder)}", Body=path.read_bytes())
        return sum(path.stat().st_size for path in files)

    def remove(self, key: str) -> None:
        """Remove an object."""
        self._client.delete_object(Bucket=BUCKET, Key=key)

    def sent(self) -> int:
        """Bytes of objects that it has sent so far."""
        with urllib.request.urlopen(self._address + _SENT, timeout=_END_S) as answer:
            return int(answer.read())


@contextlib.contextmanager
def far_bucket(latency_s: float, bytes_per_s: float) -> Iterator[Bucket]:
    """Serve an empty bucket."""
    command = [sys.executable, "-m", "benchmarks._bucket", str(latency_s), str(bytes_per_s)]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent,
        env={**os.environ, **LOGIN},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Bucket(process.stdout.readline().strip())
        finally:
            process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                # Answers that nobody reads any more, of a run that was ended, hold up its threads.
                process.kill()


class _Far:
    """Another WSGI application, whose answers to GET and HEAD begin late and come at a rate."""

    def __init__(self, application: Any, latency_s: float, bytes_per_s: float) -> None:
        self._application = application
        self._latency_s = latency_s
        self._meter = Meter(bytes_per_s)
        self._lock = threading.Lock()
        self._sent = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _SENT:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [str(self._sent).encode()]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            answer: Iterable[bytes] = self._application(environ, start_response)
            return answer
        time.sleep(self._latency_s)
        return self._paced(self._application(environ, start_response))

    def _paced(self, content: Iterable[bytes]) -> Iterator[bytes]:
        for part in content:
            view = memoryview(part)
            for first in range(0, len(view), _PIECE):
                piece = view[first : first + _PIECE]
                with self._lock:
                    now = time.monotonic()
                    arrived = self._meter.reserve(now, len(piece))
                    self._sent += len(piece)
                time.sleep(max(0.0, arrived - now))
                yield bytes(piece)


def main() -> None:
    """Serve, and say where."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import FakeKey
    from werkzeug.serving import make_server

    # Not typed: moto's own annotations of the property say nothing of its parts.
    keys: Any = FakeKey
    value = keys.value

    def read_once(key: Any) -> bytes:
        # moto copies the whole object for each range of it, which would be measured as the network's time.
        if "whole" not in vars(key):
            vars(key)["whole"] = value.fget(key)
        whole: bytes = vars(key)["whole"]
        return whole

    keys.value = value.getter(read_once)
    latency_s, bytes_per_s = map(float, sys.argv[1:])
    far = _Far(DomainDispatcherApplication(create_backend_app), latency_s, bytes_per_s)
    server = make_server("127.0.0.1", 0, far, threaded=True)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
