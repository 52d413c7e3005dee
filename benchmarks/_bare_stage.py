"""Make pixels of a folder of JPEGs by bare calls: what a process that has imported nothing cannot do without.

    python -m benchmarks._bare_stage FOLDER TARGET

Lists a folder of folders, reads all files by as many threads as staging has, decodes them by as many as it has cores,
scales them to 224x224 by torch's kernel, without an import of torch where that can be, and writes the rows to one file.
There are no labels, no checks and no messages, nothing is looked at twice, and what can be imported later is.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Semaphore

READERS, SIDE = 32, 224
# Files that are read and not yet decoded, so that memory is bounded as it is in staging.
AHEAD = 640


def list_files(pool: ThreadPoolExecutor, folder: Path) -> list[str]:
    """The files of all folders in a folder."""
    listed = pool.map(lambda place: [entry.path for entry in os.scandir(place) if entry.is_file()], folder.iterdir())
    return sorted(path for paths in listed for path in paths)


def make_pixels(folder: Path, target: Path) -> None:
    """Write uint8 rows of 224x224x3, in the order of the files' names."""
    row_bytes, room = SIDE * SIDE * 3, Semaphore(AHEAD)
    with ThreadPoolExecutor(READERS) as readers, ThreadPoolExecutor(os.cpu_count()) as workers:
        listing = readers.submit(list_files, readers, folder)
        import numpy as np  # beside the listing
        import simplejpeg

        from colabstage.images.decode import can_torch_resize, scale_by_torch

        kernel = workers.submit(can_torch_resize)

        def read(path: str) -> bytes:
            room.acquire()
            with open(path, "rb") as file:
                return file.read()

        def use(number: int, data: bytes, file: int) -> None:
            room.release()
            kernel.result()
            out = np.empty((SIDE, SIDE, 3), np.uint8)
            scale_by_torch(simplejpeg.decode_jpeg(data), out)
            os.pwrite(file, out.data, number * row_bytes)

        file = os.open(target, os.O_RDWR | os.O_CREAT)
        try:
            reads = deque(readers.submit(read, path) for path in listing.result())
            done = [workers.submit(use, number, reads.popleft().result(), file) for number in range(len(reads))]
            for one in done:
                one.result()
        except BaseException:
            # Readers wait for room that nobody makes any more.
            readers.shutdown(wait=False, cancel_futures=True)
            room.release(READERS)
            raise
        finally:
            workers.shutdown()
            os.close(file)


if __name__ == "__main__":
    make_pixels(Path(sys.argv[1]), Path(sys.argv[2]))
