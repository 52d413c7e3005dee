"""The error classes: documented correctly, also builtin errors, picklable, plain to read."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from colabstage import errors

CLASSES = sorted(
    (kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__),
    key=lambda kind: kind.__name__,
)

# Where an error comes from the caller's own code, from a mistake in colabstage, or from something new in Colab, people
# look it up by its type. The form and the browser show the type of our errors above the text.
TYPES_SHOWN = {
    *("layouts/formats/items.py", "machine/drive.py"),
    *("cli/command.py", "notebook/form.py", "notebook/browser.py"),
}


def test_texts_of_errors_name_no_types() -> None:
    """Errors of a library or the system are quoted in words."""
    root = Path(errors.__file__).parent
    shown = re.compile(r"type\((?:error|reason|caught)\)\.__name__|\{(?:error|caught)!r\}")
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if shown.search(path.read_text(encoding="utf-8"))
    }
    assert found == TYPES_SHOWN


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError(2, "No such file or directory", "a"), "No such file or directory"),
        (OSError("[Errno 5] Input/output error"), "Input/output error"),
        (KeyError("size"), "'size' is missing"),
        (UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "invalid start byte"), "byte 1 is not text in UTF-8"),
        (RecursionError("maximum recursion depth exceeded"), "it is nested too deeply"),
        (MemoryError(), "it does not fit into memory"),
        (ValueError("It is odd."), "It is odd"),
        (RuntimeError(), "no reason was given"),
    ],
)
def test_what_an_error_says_is_said_in_words(error: Exception, words: str) -> None:
    """Without its type, and without the system's error number."""
    assert errors.said_by(error) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "nothing"), (True, "true or false"), (1.5, "a number"), ("a", "text"), ({"a": 1}, "an object with fields")],
)
def test_what_stands_in_a_file_is_said_in_words(value: object, words: str) -> None:
    """A value from JSON, or from a column."""
    assert errors.kind_of(value) == words


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: str(kind.__name__))
def test_an_error_is_a_builtin_too_and_travels(kind: type[errors.ColabstageError]) -> None:
    """Code that does not know colabstage catches the builtin it expects. The error comes whole from a worker process,
    with its notes, and reads as written: a KeyError would quote it, an OSError with two arguments number it."""
    builtins = [parent for parent in kind.__mro__ if parent.__module__ == "builtins"]
    assert kind is errors.ColabstageError or builtins[0] not in {Exception, BaseException, object}
    assert issubclass(kind, errors.ColabstageError)
    error = kind("No split 'dev'. There are: train, test.")
    error.add_note("in sample 7")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), back.args, back.__notes__) == (kind, error.args, ["in sample 7"])
    assert (str(back), str(kind())) == ("No split 'dev'. There are: train, test.", "")
    assert (kind.__doc__ or "").strip().endswith("."), "it says when it is raised"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
        ("a\rb\x7f\x9b31m", r"a\x0db\x7f\x9b31m"),
        ("photo\u202egnp.exe", r"photo\u202egnp.exe"),
        ("caf\udce9", r"caf\xe9"),
        ("Grüße, 世界 👩‍🔬\n\tand more", "Grüße, 世界 👩‍🔬\n\tand more"),
    ],
)
def test_names_do_nothing_to_a_terminal(text: str, shown: str) -> None:
    """In every message of every error; ordinary text stays as it is, and all of it can be encoded."""
    assert str(errors.SourceNotFoundError(f"There is no '{text}'.")) == f"There is no '{shown}'."
    assert errors.printable(text).encode()
