"""The stand-in package's modules beside `drive`: what the front end, the accounts service and the browser would answer
is what the practice machine's knobs say.

Types of errors and their bases, arguments, names and what is refused are those of the real modules; what is shown to
people is only noted.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import uuid
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tests.support.colab_machine import (
    AuthorizationError,
    Error,
    MessageError,
    NotebookAccessError,
    RuntimeManagementError,
    SecretNotFoundError,
    SimulatedColab,
    TimeoutException,
    WidgetException,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WIDGETS_VERSION = "5.0.0a"
_SERVICE_ACCOUNT_TRIES = 3
_NO_CREDENTIALS = "Failed to fetch user credentials"


def errors_module(_: SimulatedColab) -> ModuleType:
    """Build `google.colab.errors`."""
    module: Any = ModuleType("google.colab.errors")
    for kind in (Error, AuthorizationError, RuntimeManagementError, WidgetException):
        setattr(module, kind.__name__, kind)
    return module  # type: ignore[no-any-return]


def message_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab._message`."""

    def blocking_request(
        request_type: str, request: Any = "", timeout_sec: float | None = 5, parent: Any = None
    ) -> Any:
        colab.calls.append(f"_message.{request_type}")
        answered = colab.request_auth(str((request or {}).get("authType", "")), timeout_s=timeout_sec)
        return {} if answered else None

    module: Any = ModuleType("google.colab._message")
    module.MessageError, module.blocking_request = MessageError, blocking_request
    return module  # type: ignore[no-any-return]


def userdata_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.userdata`."""
    lock = threading.Lock()

    def get(key: Any) -> str:
        if not key or not isinstance(key, str):
            msg = "Please enter a valid secret name"
            raise ValueError(msg)
        if any(character.isspace() for character in key):
            msg = "Secret name cannot contain spaces or whitespace"
            raise ValueError(msg)
        with lock:
            colab.calls.append("userdata.get")
            if not colab.knobs.page_is_open:
                raise TimeoutException(key)
            if key not in colab.knobs.secrets:
                raise SecretNotFoundError(key)
            if key in colab.knobs.secrets_not_granted:
                raise NotebookAccessError(key)
            return colab.knobs.secrets[key]

    module: Any = ModuleType("google.colab.userdata")
    module.get, module.SecretNotFoundError = get, SecretNotFoundError
    module.NotebookAccessError, module.TimeoutException = NotebookAccessError, TimeoutException
    return module  # type: ignore[no-any-return]


def files_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.files`: the browser's side is `knobs.uploads` (what is chosen) and `downloads` (what
    arrives)."""

    def upload(target_dir: str = "") -> dict[str, bytes]:
        colab.calls.append("files.upload")
        if target_dir:
            Path(target_dir).mkdir(parents=True, exist_ok=True)
        saved = {}
        for name, data in colab.knobs.uploads.items():
            chosen = str(Path(target_dir, name))
            target = _free_name(Path(chosen))
            # Printed, because notebooks that parse the real module's output find the same here.
            print(f"Saving {chosen} to {target}")
            target.write_bytes(data)
            saved[str(target)] = data
        return saved

    def upload_file(filename: str) -> None:
        colab.calls.append("files.upload_file")
        name, data = _only_upload(colab, needed=True) or ("", b"")
        Path(filename).write_bytes(data)
        print(f"Saved {name} to {Path.cwd()}/{filename}")

    def _upload_file(filepath: str | None) -> tuple[str, bytes] | None:
        chosen = _only_upload(colab, needed=False)
        if chosen is None:
            return None
        target = filepath or str(_free_name(Path(chosen[0])))
        Path(target).write_bytes(chosen[1])
        return target, chosen[1]

    def download(filename: str) -> None:
        colab.calls.append("files.download")
        _check_there(filename)
        # Files travel to the browser through the kernel, so that a script without one fails here.
        _ = _kernel()
        colab.downloads[Path(filename).name] = Path(filename).read_bytes()

    def view(filepath: str) -> None:
        colab.calls.append("files.view")
        _check_there(filepath)

    module: Any = ModuleType("google.colab.files")
    module.__all__ = ["download", "upload", "upload_file", "view"]
    module.upload, module.upload_file, module.download, module.view = upload, upload_file, download, view
    module._upload_file = _upload_file
    return module  # type: ignore[no-any-return]


def _only_upload(colab: SimulatedColab, *, needed: bool) -> tuple[str, bytes] | None:
    """Return the one file that was chosen, its name and bytes; `None` where the dialogue was cancelled."""
    chosen = list(colab.knobs.uploads.items())
    if not chosen and needed:
        msg = "File has not been uploaded"
        raise ValueError(msg)
    if len(chosen) > 1:
        msg = "Multiple files received, please upload a single file"
        raise ValueError(msg)
    return chosen[0] if chosen else None


def _check_there(filename: str) -> None:
    if not Path(filename).exists():
        msg = f"Cannot find file: {filename}"
        raise FileNotFoundError(msg)


def _free_name(path: Path) -> Path:
    """Find a name that is free: `name.ext`, else `name (1).ext`, `name (2).ext`, … ."""
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.stem} ({number}){path.suffix}")
    return candidate


def auth_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.auth`: `knobs.auth` answers for the person, `knobs.uploads` is the key of an account."""

    def authenticate_user(clear_output: bool = True, project_id: str | None = None) -> None:
        colab.calls.append("auth.authenticate_user")
        if os.environ.get("VERTEX_PRODUCT") == "COLAB_ENTERPRISE":
            print("WARNING: google.colab.auth.authenticate_user() is not supported in Colab Enterprise.")
            return
        if project_id is not None:
            os.environ["GOOGLE_CLOUD_PROJECT"] = os.environ["GOOGLE_CLOUD_QUOTA_PROJECT"] = project_id
        _check_supported()
        if colab.signed_in:
            return
        if os.environ.get("USE_AUTH_EPHEM", "0") == "1":
            colab.signed_in = colab.request_auth("auth_user_ephemeral", timeout_s=None)
        elif colab.knobs.auth == "granted":
            os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(_key_path())
            colab.signed_in = True
        else:
            msg = "Error fetching credentials"
            raise AuthorizationError(msg)
        if not colab.signed_in:
            raise AuthorizationError(_NO_CREDENTIALS)

    def authenticate_service_account(clear_output: bool = True) -> None:
        colab.calls.append("auth.authenticate_service_account")
        _check_supported()
        if colab.service_account:
            return
        path = _key_path()
        os.environ["GOOGLE_APPLICATION_CREDENTIALS"] = str(path)
        for _ in range(_SERVICE_ACCOUNT_TRIES):
            chosen = _only_upload(colab, needed=False)
            if chosen is None:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(chosen[1])
            colab.service_account = _service_account(chosen[1])
            if colab.service_account:
                print("Successfully saved credentials for", colab.service_account)
                return
            print("Invalid credentials: please try again.\n\n")
        raise AuthorizationError(_NO_CREDENTIALS)

    def _check_supported() -> None:
        # The real module tells these machines by this very file.
        if colab.marker("/var/colab/mp").exists():
            msg = "google.colab.auth is unsupported in this environment."
            raise NotImplementedError(msg)

    def _key_path() -> Path:
        return colab.marker("/content/.adc/adc.json")

    module: Any = ModuleType("google.colab.auth")
    module.__all__ = ["authenticate_service_account", "authenticate_user"]
    module.authenticate_user, module.authenticate_service_account = authenticate_user, authenticate_service_account
    return module  # type: ignore[no-any-return]


def _service_account(key: bytes) -> str:
    """Return the account that a key is of; "" where it is none."""
    try:
        fields = json.loads(key)
    except ValueError:
        return ""
    if not isinstance(fields, dict) or fields.get("type") != "service_account":
        return ""
    if not fields.get("project_id"):
        msg = "Could not get cloud project id from credentials"
        raise AuthorizationError(msg)
    return str(fields.get("client_email", "unnamed"))


def runtime_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.runtime`."""

    def unassign() -> None:
        colab.calls.append("runtime.unassign")
        if not os.environ.get("TBE_RUNTIME_ADDR"):
            msg = "Unable to find the runtime management service."
            raise RuntimeManagementError(msg)
        if colab.knobs.unassign == "fails":
            msg = "Unable to request VM unassignment."
            raise RuntimeManagementError(msg)
        colab.delete_machine()
        # The page is told, too.
        colab.calls.append("output.eval_js")

    module: Any = ModuleType("google.colab.runtime")
    module.__all__ = ["unassign"]
    module.unassign = unassign
    return module  # type: ignore[no-any-return]


def _kernel() -> Any:
    """Return the notebook's kernel; outside one it fails as the real module does, over the shell that is not there."""
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell: Any = get_shell() if get_shell else None
    return shell.kernel


def output_module(colab: SimulatedColab) -> ModuleType:
    """Build `google.colab.output`, which notes what was asked for."""
    module: Any = ModuleType("google.colab.output")
    callbacks: dict[str, Callable[..., Any]] = {}

    def enable_custom_widget_manager(version: str = _WIDGETS_VERSION) -> None:
        if version != _WIDGETS_VERSION:
            msg = f"Unknown widgets version: {version}"
            raise ValueError(msg)
        colab.calls.append("output.enable_custom_widget_manager")

    def disable_custom_widget_manager() -> None:
        colab.calls.append("output.disable_custom_widget_manager")

    def clear(wait: Any = False, output_tags: Any = ()) -> None:
        if not isinstance(wait, bool):
            msg = "wait must be a boolean value"
            raise ValueError(msg)  # noqa: TRY004 - as the real one does
        colab.calls.append("output.clear")

    def eval_js(script: str, ignore_result: bool = False, timeout_sec: float | None = None) -> Any:
        _ = _kernel()
        colab.calls.append("output.eval_js")

    def register_callback(function_name: str, callback: Callable[..., Any]) -> None:
        colab.calls.append(f"output.register_callback {function_name}")
        callbacks[function_name] = callback

    def unregister_callback(function_name: str) -> None:
        if function_name not in callbacks:
            msg = f"Callback function not registered: {function_name}."
            raise ValueError(msg)
        del callbacks[function_name]

    @contextlib.contextmanager
    def redirect_to_element(selector: Any) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def to_area() -> Iterator[None]:
        yield

    def note(*_: Any, **__: Any) -> None:
        colab.calls.append("output")

    module.enable_custom_widget_manager = enable_custom_widget_manager
    module.disable_custom_widget_manager = disable_custom_widget_manager
    module.clear, module.eval_js, module.register_callback = clear, eval_js, register_callback
    module.unregister_callback = unregister_callback
    module.temporary, module.use_tags = _tags(clear)
    module.redirect_to_element = redirect_to_element
    module.to_header_area = module.to_footer_area = module.to_default_area = to_area
    module.no_vertical_scroll = module.serve_kernel_port_as_iframe = module.serve_kernel_port_as_window = note
    return module  # type: ignore[no-any-return]


def _tags(clear: Callable[..., None]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Build `temporary` and `use_tags`."""
    tags_now: set[str] = set()

    @contextlib.contextmanager
    def use_tags(tags: Any, append: bool = True) -> Iterator[set[str]]:
        wanted, before = {tags} if isinstance(tags, str) else set(tags), set(tags_now)
        tags_now.difference_update(set() if append else before - wanted)
        tags_now.update(wanted)
        try:
            yield tags_now
        finally:
            tags_now.clear()
            tags_now.update(before)

    @contextlib.contextmanager
    def temporary() -> Iterator[str]:
        tag = str(uuid.uuid4())
        with use_tags(tag):
            yield tag
        clear(output_tags=tag)

    return temporary, use_tags


def display_modules(colab: SimulatedColab) -> dict[str, ModuleType]:
    """Build the modules that only draw, with the names that notebooks call; nothing is drawn."""
    names = {
        "autoviz": ("quickchart", "get_df"),
        "data_table": ("enable_dataframe_formatter", "disable_dataframe_formatter"),
        "snippets": ("register",),
        "widgets": (),
    }

    def note(*_: Any, **__: Any) -> None:
        colab.calls.append("display")

    made = {}
    for name, functions in names.items():
        made[name] = ModuleType(f"google.colab.{name}")
        for function in functions:
            setattr(made[name], function, note)
    return made
