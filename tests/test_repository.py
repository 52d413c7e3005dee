"""What is committed: no path of one machine, no registry, nothing big. And no test that is stuck keeps its run."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from scripts.run_tests import STUCK

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 600 * 1024

# Homes that identify notebook platforms are facts, not somebody's machine; Ann is nobody.
_OWN_PATHS = re.compile(
    r"(?<![\w./$}-])/(?:(?:home|Users)/(?!studio-lab-user|sagemaker-user|ann\b)\w|root/\.(?!config/Google)|work/\w)"
)
# In two pieces, so that this file passes its own test.
_REGISTRIES = re.compile("|".join((r"py" + r"pi\.org", r"python" + r"hosted\.org", r"download\." + r"pytorch\.org")))


@cache
def tracked() -> tuple[Path, ...]:
    """The files that git tracks."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout: what is committed is what is looked at")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    return tuple(path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file())


def text_of(path: Path) -> str:
    """A file's text; for pictures and other binary files, the text in them."""
    return path.read_text(encoding="utf-8", errors="ignore")


def complaints(text: str) -> list[str]:
    """The passages that belong to one machine or name a package registry."""
    return [
        text[match.start() : match.end() + 20] for rule in (_OWN_PATHS, _REGISTRIES) for match in rule.finditer(text)
    ]


def test_no_path_or_host_of_one_place() -> None:
    """No tracked file names a home, a work folder or a package registry."""
    found = {
        str(path.relative_to(ROOT)): bad
        for path in tracked()
        if path.suffix != ".png" and (bad := complaints(text_of(path)))
    }
    assert found == {}


def test_nothing_big_is_tracked() -> None:
    """No tracked file is above 600 KiB."""
    assert {path.name: path.stat().st_size for path in tracked() if path.stat().st_size > MAX_BYTES} == {}


def test_the_package_holds_modules_and_no_leftovers() -> None:
    """Files that an editor or a tool leaves beside a module would end up in everybody's wheel."""
    inside = [path for path in tracked() if path.is_relative_to(ROOT / "colabstage")]
    assert len(inside) > 100
    assert [path.name for path in inside if path.suffix != ".py" and path.name != "py.typed"] == []


def test_a_test_that_keeps_pythons_lock_ends_its_run(tmp_path: Path) -> None:
    """With its name; pytest-timeout needs the lock to do so."""
    stuck = tmp_path / "test_stuck.py"
    stuck.write_text("import ctypes\ndef test_stuck():\n    ctypes.PyDLL(None).sleep(60)\n", "utf-8")
    options = [option.replace("timeout=400", "timeout=1") for option in STUCK]
    command = [sys.executable, "-P", "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider", *options, str(stuck)]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, timeout=50)
    assert ended.returncode
    assert b"in test_stuck" in ended.stderr
