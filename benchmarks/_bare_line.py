"""The least that an epoch on data that arrives takes on a line: bare calls, with nothing of ours.

A client that knows no more than the address of an archive asks for its table of contents, then for all of it by one
request. It keeps the bytes in memory, decodes nothing and shuffles nothing; a batch is trained on as soon as its bytes
have come. Two round trips, the bytes, and what is trained on after the last of them: no loader spares any of these.
"""

from __future__ import annotations

import http.client
import threading
import time
from urllib.parse import urlsplit

from colabstage.io.pipeline import in_thread

_TABLE_BYTES = 256 * 1024
_PIECE_BYTES = 64 * 1024
# A line that is silent for so long has failed.
_SILENT_S = 60.0
# How often a wait looks whether fetching has failed.
_LOOK_S = 1.0


def ask_bare(url: str) -> float:
    """Return the seconds of one question about a file: what proves that it is the same as before."""
    began, parts = time.perf_counter(), urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_SILENT_S)
    connection.request("HEAD", parts.path)
    connection.getresponse().read()
    connection.close()
    return time.perf_counter() - began


def train_bare(url: str, nbytes: int, batches: int, step_s: float) -> float:
    """Fetch a file of so many bytes, and pause after each equal part of it as it comes; return the seconds of both."""
    began, parts = time.perf_counter(), urlsplit(url)
    come, moved = 0, threading.Condition()

    def fetch() -> None:
        nonlocal come
        connection = http.client.HTTPConnection(parts.netloc, timeout=_SILENT_S)
        connection.request("GET", parts.path, headers={"Range": f"bytes=-{_TABLE_BYTES}"})
        connection.getresponse().read()
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        while piece := answer.read(_PIECE_BYTES):
            with moved:
                come += len(piece)
                moved.notify()
        connection.close()

    fetched = in_thread(fetch, "bare-line")
    for batch in range(batches):
        needed = nbytes * (batch + 1) // batches
        with moved:
            while come < needed:
                if fetched.done():
                    fetched.result()
                    msg = f"{come:,} of {nbytes:,} bytes came."
                    raise EOFError(msg)
                moved.wait(_LOOK_S)
        time.sleep(step_s)
    return time.perf_counter() - began
