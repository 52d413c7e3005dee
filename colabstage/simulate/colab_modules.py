"""The stand-in modules of `google.colab` other than `drive`: secrets, files, sign-in, the runtime, output, errors."""

# ruff: noqa: ARG001 - the parameters are those of the real functions, used here or not
from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from colabstage.simulate.colab import SimulatedColab

_WIDGETS_VERSION = "5.0.0a"


class Error(Exception):
    """`google.colab.errors.Error`."""


class AuthorizationError(Error):
    """`google.colab.errors.AuthorizationError`."""


class RuntimeManagementError(Error):
    """`google.colab.errors.RuntimeManagementError`."""


class WidgetException(Error):  # noqa: N818 - the name it has there
    """`google.colab.errors.WidgetException`."""


class MessageError(Error):
    """`google.colab._message.MessageError`: the front end answered with an error."""


class SecretNotFoundError(Exception):
    """`google.colab.userdata.SecretNotFoundError`; not one of `errors.Error`."""


class NotebookAccessError(Exception):
    """`google.colab.userdata.NotebookAccessError`: the secret is there, but not granted to this notebook."""


class TimeoutException(Exception):  # noqa: N818 - the name it has there
    """`google.colab.userdata.TimeoutException`: no answer, because the code does not run in Colab's page."""


for _error in (Error, AuthorizationError, RuntimeManagementError, WidgetException):
    _error.__module__ = "google.colab.errors"
for _refusal in (SecretNotFoundError, NotebookAccessError, TimeoutException):
    _refusal.__module__ = "google.colab.userdata"
MessageError.__module__ = "google.colab._message"


def errors_module(_: SimulatedColab) -> ModuleType:
    """`google.colab.errors`."""
    module: Any = ModuleType("google.colab.errors")
    for kind in (Error, AuthorizationError, RuntimeManagementError, WidgetException):
        setattr(module, kind.__name__, kind)
    return module  # type: ignore[no-any-return]


def message_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab._message`."""

    def blocking_request(request_type: str, request: Any = "", timeout_sec: float = 5, parent: Any = None) -> Any:
        colab.calls.append(f"_message.{request_type}")
        answered = colab.request_auth(str((request or {}).get("authType", "")), timeout_s=timeout_sec)
        return {} if answered else None

    module: Any = ModuleType("google.colab._message")
    module.MessageError, module.blocking_request = MessageError, blocking_request
    return module  # type: ignore[no-any-return]


def userdata_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab.userdata`."""
    lock = threading.Lock()

    def get(key: Any) -> str:
        if not isinstance(key, str) or not key:
            msg = "Please enter a valid secret name"
            raise ValueError(msg)
        if any(character.isspace() for character in key):
            msg = "Secret name cannot contain spaces or whitespace"
            raise ValueError(msg)
        with lock:
            colab.calls.append("userdata.get")
            if not colab.knobs.page_is_open:
                msg = f"Requesting secret {key} timed out. Secrets can only be fetched when running from the Colab UI."
                raise TimeoutException(msg)
            if key not in colab.knobs.secrets:
                msg = f"Secret {key} does not exist."
                raise SecretNotFoundError(msg)
            if key in colab.knobs.secrets_not_granted:
                msg = f"Notebook does not have access to secret {key}"
                raise NotebookAccessError(msg)
            return colab.knobs.secrets[key]

    module: Any = ModuleType("google.colab.userdata")
    module.get, module.SecretNotFoundError = get, SecretNotFoundError
    module.NotebookAccessError, module.TimeoutException = NotebookAccessError, TimeoutException
    return module  # type: ignore[no-any-return]


def files_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab.files`: the browser's side is `knobs.uploads` (what is chosen) and `downloads` (what arrives)."""

    def upload(target_dir: str = "") -> dict[str, bytes]:
        colab.calls.append("files.upload")
        saved = {}
        for name, data in colab.knobs.uploads.items():
            target = _free_name(Path(target_dir, name))
            target.write_bytes(data)
            print(f"Saving {name} to {target}")
            saved[str(target)] = data
        return saved

    def upload_file(filename: str) -> None:
        colab.calls.append("files.upload_file")
        Path(filename).write_bytes(next(iter(colab.knobs.uploads.values()), b""))

    def download(filename: str) -> None:
        colab.calls.append("files.download")
        if not Path(filename).exists():
            msg = f"Cannot find file: {filename}"
            raise FileNotFoundError(msg)
        colab.downloads[Path(filename).name] = Path(filename).read_bytes()

    def view(filepath: str) -> None:
        colab.calls.append("files.view")
        if not Path(filepath).exists():
            msg = f"Cannot find file: {filepath}"
            raise FileNotFoundError(msg)

    module: Any = ModuleType("google.colab.files")
    module.upload, module.upload_file, module.download, module.view = upload, upload_file, download, view
    return module  # type: ignore[no-any-return]


def _free_name(path: Path) -> Path:
    """`name.ext`, else `name (1).ext`, `name (2).ext`, … ."""
    candidate, number = path, 0
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return candidate


def auth_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab.auth`."""

    def authenticate_user(clear_output: bool = True, project_id: str | None = None) -> None:
        colab.calls.append("auth.authenticate_user")
        if os.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            print("WARNING: google.colab.auth.authenticate_user() is not supported in Colab Enterprise.")
            return
        if colab.knobs.auth != "granted":
            msg = "Failed to fetch user credentials"
            raise AuthorizationError(msg)
        colab.signed_in = True

    module: Any = ModuleType("google.colab.auth")
    module.authenticate_user = authenticate_user
    return module  # type: ignore[no-any-return]


def runtime_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab.runtime`."""

    def unassign() -> None:
        colab.calls.append("runtime.unassign")
        if not os.environ.get("TBE_RUNTIME_ADDR"):
            msg = "Kernel does not support runtime management"
            raise RuntimeManagementError(msg)
        colab.delete_machine()

    module: Any = ModuleType("google.colab.runtime")
    module.unassign = unassign
    return module  # type: ignore[no-any-return]


def output_module(colab: SimulatedColab) -> ModuleType:
    """`google.colab.output`: notes what was asked for."""

    def enable_custom_widget_manager(version: str = _WIDGETS_VERSION) -> None:
        if version != _WIDGETS_VERSION:
            msg = f"Unknown widgets version: {version}"
            raise ValueError(msg)
        colab.calls.append("output.enable_custom_widget_manager")

    def disable_custom_widget_manager() -> None:
        colab.calls.append("output.disable_custom_widget_manager")

    def clear(wait: Any = False, output_tags: Any = ()) -> None:
        if not isinstance(wait, bool):
            msg = f"wait must be a bool, got {wait!r}"
            raise ValueError(msg)  # noqa: TRY004 - as the real one does
        colab.calls.append("output.clear")

    def eval_js(script: str, ignore_result: bool = False, timeout_sec: float | None = None) -> Any:
        colab.calls.append("output.eval_js")

    def register_callback(function_name: str, callback: Callable[..., Any]) -> None:
        colab.calls.append(f"output.register_callback {function_name}")

    @contextlib.contextmanager
    def temporary() -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def use_tags(tags: Any, append: bool = True) -> Iterator[None]:
        yield

    module: Any = ModuleType("google.colab.output")
    module.enable_custom_widget_manager = enable_custom_widget_manager
    module.disable_custom_widget_manager = disable_custom_widget_manager
    module.clear, module.eval_js, module.register_callback = clear, eval_js, register_callback
    module.temporary, module.use_tags = temporary, use_tags
    return module  # type: ignore[no-any-return]
