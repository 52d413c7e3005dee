"""A process of its own for kagglehub, which may wait for ever: started, watched and ended by `kaggle_datasets.py`.

Run as `python -m colabstage.sources.kaggle_worker OWNER/DATASET`, with `--newest` before it only to ask which version
is the newest. Standard output carries one JSON object, everything that kagglehub prints goes to standard error, and the
process ends when its standard input does, so it cannot outlive
whoever started it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any


def answer_and_exit() -> None:
    """Download one dataset, or ask for its version; write `{"path": …}`, `{"version": …}` or what went wrong."""
    answer = os.dup(1)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.write(answer, json.dumps(_answer(*sys.argv[1:])).encode())
    # Not through the interpreter's end, which would wait for threads of kagglehub's.
    os._exit(0)


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


def _answer(*arguments: str) -> dict[str, Any]:
    handle = arguments[-1]
    try:
        if arguments[0] == "--newest":
            return {"version": _newest(*handle.split("/"))}
        import kagglehub

        return {"path": os.fspath(kagglehub.dataset_download(handle))}
    except Exception as error:  # noqa: BLE001 - whatever it is, the other process judges it
        response = getattr(error, "response", None)
        return {
            "kinds": [kind.__name__ for kind in type(error).__mro__],
            "message": str(error),
            "status": getattr(response, "status_code", None),
            "errno": getattr(error, "errno", None),
        }


def _newest(owner: str, name: str) -> int:
    from kagglehub.clients import build_kaggle_client
    from kagglesdk.datasets.types.dataset_api_service import ApiGetDatasetRequest  # type: ignore[import-untyped]

    question = ApiGetDatasetRequest()
    question.owner_slug, question.dataset_slug = owner, name
    with build_kaggle_client() as client:
        return int(client.datasets.dataset_api_client.get_dataset(question).current_version_number)


if __name__ == "__main__":
    answer_and_exit()
