"""Install packages into the environment of the running Python, with the arguments of `pip install`.

It uses uv if possible, which needs a third of pip's CPU time and both cores; pip if there is no uv, or if uv fails. uv
does not read pip's settings, so it is passed those that say where packages come from.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

# Far more than the largest environment takes to install.
TIMEOUT_S = 900
# The settings of pip that uv knows, with uv's option; in pip's order of precedence.
OPTIONS = {
    "index-url": "--index-url",
    "extra-index-url": "--extra-index-url",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
SECTIONS = ("global", "install", ":env:")


def uv_settings(listed: str) -> tuple[list[str], dict[str, str]]:
    """Return options and variables for uv that correspond to the output of `pip config list`."""
    found = dict(re.findall(r"^([^=\s]+)=(.*)$", listed, re.MULTILINE))
    settings = {
        key.partition(".")[2]: str(ast.literal_eval(found[key]))
        for section in SECTIONS
        for key in found
        if key.startswith(f"{section}.")
    }
    options = [
        part for name, option in OPTIONS.items() for value in settings.get(name, "").split() for part in (option, value)
    ]
    if settings.get("no-index", "").lower() in {"1", "true", "yes", "on"}:
        options.append("--no-index")
    return options, {"SSL_CERT_FILE": settings["cert"]} if "cert" in settings else {}


def by_uv(arguments: list[str]) -> bool:
    """Try; say why it was not possible."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    options, variables = uv_settings(subprocess.run(pip, check=True, capture_output=True, text=True, timeout=60).stdout)
    # As pip does: the best version in any of the indexes.
    command = [
        "-m",
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        sys.executable,
        "--index-strategy",
        "unsafe-best-match",
    ]
    try:
        done = subprocess.run(
            [sys.executable, *command, *options, *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"uv was stopped after {TIMEOUT_S} s; pip installs now.", file=sys.stderr)
        return False
    if done.returncode and "No module named uv" not in done.stderr:
        print(f"{done.stderr.strip()}\nuv could not install this; pip tries now.", file=sys.stderr)
    return not done.returncode


def main(arguments: list[str]) -> int:
    """Install; returns the exit code."""
    if by_uv(arguments):
        return 0
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", *arguments], check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
