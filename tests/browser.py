"""A real JupyterLab and a real headless Chromium, for tests of what people see in a notebook.

`tests/notebook/conftest.py` hands the fixtures to the tests beside it, which open notebooks made of cells:

    def test_it(open_notebook: OpenNotebook) -> None:
        notebook = open_notebook("from colabstage import browse_dataset", "browse_dataset('pack.h5')")
        notebook.run()
        notebook.page.wait_for_selector(".colabstage-browse")
        notebook.screenshot("browse")

A test module has one server, one Chromium and one page, in which its notebooks are opened one after the other: loading
JupyterLab takes five seconds of computing, another notebook one. They last no longer than the module, because
Playwright runs an event loop in the thread that uses it, which other tests could not bear. If a part is missing, the
tests are skipped and say which.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest
import requests

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from tests.nurseries import Nurseries

ROOT = Path(__file__).resolve().parent.parent
# Ignored by git; to be looked at.
SCREENSHOTS = ROOT / ".screenshots"
Theme = Literal["light", "dark"]

_THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
# For a server or a page on two busy cores; each wait ends as soon as it can.
_START_TIMEOUT_S = 120.0
_WAIT_MS = 45_000
_PARTS = ("jupyterlab", "playwright", "ipywidgets", "ipykernel")


def chromium_path() -> str | None:
    """The path of a Chromium or Chrome on this machine; `None` if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for name in names if (path := shutil.which(name))), None)


def missing_part() -> str | None:
    """Why tests in a browser cannot run here; `None` if they can."""
    absent = [name for name in _PARTS if find_spec(name) is None]
    if absent:
        return f"needs {', '.join(absent)}: pip install --group notebooks (or: make .venv/.tested)"
    if chromium_path() is None:
        return "needs Chromium: sudo apt-get install chromium"
    return None


@dataclass(frozen=True, slots=True)
class Jupyter:
    """A running server: its address, its token, and the folder of its notebooks."""

    url: str
    token: str
    folder: Path

    def request(self, method: str, path: str, content: object = None) -> Any:
        """Call the server's API; return the parsed response, if any."""
        answer = requests.request(
            method, f"{self.url}{path}", json=content, headers={"Authorization": f"token {self.token}"}, timeout=30
        )
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def end_kernels(self) -> None:
        """End every kernel, so that the next notebook has the machine to itself."""
        for session in self.request("GET", "api/sessions"):
            self.request("DELETE", f"api/sessions/{session['id']}")


def _free_port() -> int:
    """Return a free port: two servers that each search from 8888 on may choose the same."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _settings(token: str) -> dict[str, object]:
    server = {
        "ip": "127.0.0.1",
        "port": _free_port(),
        "open_browser": False,
        "allow_root": True,
        "terminals_enabled": False,
        "answer_yes": True,
        # None that look for other programs or open connections.
        "jpserver_extensions": {"jupyterlab": True, "jupyter_lsp": False, "jupyter_server_terminals": False},
    }
    lab = {
        "expose_app_in_browser": True,
        "extension_manager": "readonly",
        "check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "news_url": None,
    }
    return {"ServerApp": server, "IdentityProvider": {"token": token}, "LabApp": lab}


def _environment(home: Path) -> dict[str, str]:
    """An environment that neither sees nor changes this machine's own Jupyter."""
    names = ("CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR")
    own = {f"JUPYTER_{name}": str(home / name.lower()) for name in names}
    lab = {f"JUPYTERLAB_{name}_DIR": str(home / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JUPYTER", "JPY_"))}
    return {
        **kept,
        **own,
        **lab,
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_PLATFORM_DIRS": "1",
        "JUPYTER_NO_CONFIG": "",
        # No Drive except those below it, whatever is mounted on this machine.
        "COLABSTAGE_SYSTEM_ROOT": str(home / "system"),
        "PYTHONPATH": str(ROOT),
        # Without Node, which a server only asks whether it could be built anew: a second for each answer.
        "PATH": str(Path(sys.executable).parent),
    }


def _address_of(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Wait until the server has written down its address, and responds there."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError, ValueError, requests.RequestException):
            written = next(runtime.glob("jpserver-*.json"), None)
            if written is not None:
                url = str(json.loads(written.read_text("utf-8"))["url"])
                if requests.get(f"{url}api", timeout=5).ok:
                    return url
        time.sleep(0.05)
    pytest.fail(f"JupyterLab did not start within {_START_TIMEOUT_S:.0f} s:\n{log.read_text('utf-8')[-4000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its kernels, which are in its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory, nurseries: Nurseries) -> Iterator[Jupyter]:
    """This test module's only JupyterLab, whose kernels are forked from a nursery."""
    problem = missing_part()
    if problem:
        pytest.skip(problem)
    home = tmp_path_factory.mktemp("jupyter")
    token = secrets.token_hex(16)
    folder, config, log = home / "notebooks", home / "config_dir", home / "log"
    for made in (folder, config, home / "system"):
        made.mkdir()
    (config / "jupyter_server_config.json").write_text(json.dumps(_settings(token)), encoding="utf-8")
    environment = _environment(home) | {"JUPYTER_PATH": str(nurseries.kernel("torch"))}
    command = [sys.executable, "-P", "-m", "jupyterlab", f"--ServerApp.root_dir={folder}"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        server = Jupyter(_address_of(process, home / "runtime_dir", log), token, folder)
        server.request(
            "PUT",
            "lab/api/settings/@jupyterlab/apputils-extension:notification",
            {"raw": json.dumps({"fetchNews": "false", "checkForUpdates": False})},
        )
        yield server
    finally:
        _end(process)


@pytest.fixture(scope="module")
def lab(jupyter: Jupyter) -> Iterator[Page]:
    """JupyterLab's page in this test module's only Chromium, with no notebook open."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Chromium's sandbox does not work for root, which continuous integration often is.
        started = playwright.chromium.launch(
            executable_path=chromium_path(), args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        page = started.new_context().new_page()
        page.set_default_timeout(_WAIT_MS)
        foreign: list[str] = []
        page.on("request", lambda asked: None if _is_local(asked.url) else foreign.append(asked.url))
        page.goto(f"{jupyter.url}doc?token={jupyter.token}")
        page.wait_for_function("() => window.jupyterapp?.shell")
        page.evaluate("async () => { await window.jupyterapp.restored }")
        yield page
        started.close()
    assert foreign == [], "a notebook asked other machines for something"


@dataclass(slots=True)
class Notebook:
    """A notebook open in JupyterLab, with its kernel started."""

    page: Page
    errors: list[str] = field(default_factory=list)

    def run(self, *, wait: bool = True) -> None:
        """Run all cells from the top. `wait=False` returns while they run."""
        started = "window.jupyterapp.commands.execute('notebook:run-all-cells')"
        self.page.evaluate(f"async () => {{ await {started} }}" if wait else f"() => {{ void {started} }}")

    def run_cell(self, index: int, *, wait: bool = True) -> None:
        """Run one cell, counted from 0. `wait=False` returns while it runs."""
        self.page.evaluate(
            """async ([index, wait]) => {
                window.jupyterapp.shell.currentWidget.content.activeCellIndex = index;
                const ran = window.jupyterapp.commands.execute('notebook:run-cell');
                if (wait) await ran;
            }""",
            [index, wait],
        )

    def interrupt(self) -> None:
        """Press the notebook's stop button."""
        self.page.evaluate(
            "async () => { await window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt() }"
        )

    def wait_until_idle(self) -> None:
        """Wait until no cell is running."""
        self.page.wait_for_function(
            """() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'idle'
                && [...document.querySelectorAll('.jp-InputPrompt')].every(shown => !shown.innerText.includes('*'))"""
        )

    def reopen(self, *, trusted: bool) -> None:
        """Save the notebook and open it again with a new kernel, in which nothing has run yet."""
        self.page.evaluate(_REOPEN, trusted)

    def wait_for_text(self, text: str) -> None:
        """Wait until an output shows `text`."""
        self.page.locator(".jp-OutputArea-output", has_text=text).first.wait_for()

    def screenshot(self, name: str, selector: str | None = None) -> Path:
        """Save a picture of the whole page, or of the first element `selector`, as `.screenshots/NAME.png`."""
        SCREENSHOTS.mkdir(exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        (self.page if selector is None else self.page.locator(selector).first).screenshot(path=path)
        return path


class OpenNotebook(Protocol):
    """Opens a notebook of these code cells, and starts its kernel in the folder of notebooks."""

    def __call__(self, *cells: str, theme: Theme = "light", width: int = 1000, height: int = 800) -> Notebook: ...


_NUMBERS = itertools.count()
# ipywidgets 7 logs this for each label if the page has another MathJax than the one it was written for.
_TYPESETS_WITH_MATHJAX_2 = "(reading 'Queue')"
_REOPEN = """async trusted => {
    const app = window.jupyterapp;
    const widget = app.shell.currentWidget;
    const path = widget.context.path;
    await widget.context.save();
    await widget.sessionContext.shutdown();
    widget.dispose();
    const again = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
    await again.context.ready;
    await again.sessionContext.ready;
    for (const cell of again.context.model.cells) if (cell.type === 'code') cell.trusted = trusted;
    await again.sessionContext.session.kernel.info;
}"""
_CLOSE = "() => [...window.jupyterapp.shell.widgets('main')].forEach(widget => widget.dispose())"
_OPEN = """async ([path, theme]) => {
    const app = window.jupyterapp;
    await app.restored;
    await app.commands.execute('apputils:change-theme', {theme});
    const widget = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
    await widget.context.ready;
    await widget.sessionContext.ready;
    await widget.sessionContext.session.kernel.info;
}"""


def _write_notebook(folder: Path, cells: tuple[str, ...]) -> str:
    code: dict[str, object] = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    notebook = {
        "cells": [{**code, "id": f"cell{number}", "source": text} for number, text in enumerate(cells)],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    name = f"test{next(_NUMBERS)}.ipynb"
    (folder / name).write_text(json.dumps(notebook), encoding="utf-8")
    return name


@pytest.fixture
def open_notebook(jupyter: Jupyter, lab: Page) -> Iterator[OpenNotebook]:
    """Opens a notebook; after the test, it is closed and its kernel ended."""
    errors: list[str] = []

    def note(error: object) -> None:
        if not (_TYPESETS_WITH_MATHJAX_2 in str(error) and version("ipywidgets").startswith("7.")):
            errors.append(str(error))

    def open_it(*cells: str, theme: Theme = "light", width: int = 1000, height: int = 800) -> Notebook:
        name = _write_notebook(jupyter.folder, cells)
        # JupyterLab removes its splash a moment after it has faded; if the theme changes in between, it is removed
        # twice.
        lab.locator("#jupyterlab-splash").wait_for(state="detached")
        lab.set_viewport_size({"width": width, "height": height})
        lab.evaluate(_OPEN, [name, _THEMES[theme]])
        return Notebook(lab, errors)

    lab.on("pageerror", note)
    try:
        yield open_it
    finally:
        lab.evaluate(_CLOSE)
        jupyter.end_kernels()
        lab.remove_listener("pageerror", note)


def _is_local(url: str) -> bool:
    return url.startswith(
        ("http://127.0.0.1", "http://localhost", "ws://127.0.0.1", "ws://localhost", "data:", "blob:")
    )
