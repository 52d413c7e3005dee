"""Write what pages have from elsewhere, and the pages for coding agents: `python -m scripts.pages`.

docs/datasets.md has a row for each dataset that the tests build, docs/errors.md one for each class of
colabstage/errors.py, docs/notebooks.md one for each notebook. llms.txt and skills/colabstage/SKILL.md are made of the
README and docs/.
"""

from __future__ import annotations

import inspect
import json
import posixpath
import re
from typing import TYPE_CHECKING

from colabstage import errors
from tests.layouts.known_datasets import DATASETS
from tests.pages import README, ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.layouts.known import Known

COLAB = "https://colab.research.google.com/github/colabstage/colabstage/blob/main/notebooks/"
# The layouts in words.
_LAYOUTS = {
    "image_folder": "folders of classes",
    "table": "a table",
    "file_names": "file names",
    "pairs": "images and masks",
    "detection": "boxes",
    "images": "images without labels",
    "coco_classes": "classes in COCO's JSON",
    "arrays": "arrays",
    "pixel_table": "pixels in a table",
    "audio": "audio clips",
    "tokens": "tokens",
    "webdataset": "tar shards",
    "tfrecord": "TFRecords",
    "lmdb": "LMDB",
}
_FOLDERS_SHOWN = 2
# Where docstrings of errors, which have no links, say what a page explains.
_EXPLAINED = {
    "died or does not answer": "drive.md#when-the-client-dies",
    "copy the file": "drive.md#quota",
    "write your own": "formats.md#a-layout-of-your-own",
    "did not make": "drive.md#what-does-it-delete",
}
# Pages shown to agents by their first code block that runs.
_SHOWN = (("sources", "python"), ("drive", "python"), ("loaders", "python"), ("command_line", "bash"))
_LAST = """\
An error says what failed, what was expected and what to do next: follow it. `plan_stage` takes the arguments of
`stage_dataset` and changes nothing. All pages are listed in [llms.txt](../../llms.txt)."""
_ROW = re.compile(r"^\| (?P<question>[^|]+) \| (?P<pages>.*\]\(.*) \|$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")


def made_pages() -> dict[Path, str]:
    """Return the text of each page that is written here, in whole or in part, by its path."""
    docs = ROOT / "docs"
    return {
        docs / "datasets.md": _datasets((docs / "datasets.md").read_text(encoding="utf-8")),
        docs / "errors.md": _errors((docs / "errors.md").read_text(encoding="utf-8")),
        docs / "notebooks.md": _notebooks((docs / "notebooks.md").read_text(encoding="utf-8")),
        ROOT / "llms.txt": _index(),
        ROOT / "skills/colabstage/SKILL.md": _skill(),
    }


def _with_rows(page: str, rows: Iterable[str]) -> str:
    """Return a page with other rows in its first table."""
    head, rule, rest = re.split(r"(^\|(?:---\|)+\n)", page, maxsplit=1, flags=re.MULTILINE)
    after = re.sub(r"\A(?:\|.*\n)*", "", rest)
    return "".join([head, rule, *(f"{row}\n" for row in rows), after])


def _datasets(page: str) -> str:
    """Return the page with a row for each dataset, in alphabetical order, and with their numbers in its text."""
    right, helped = sum(not (one.error or one.write) for one in DATASETS), sum(bool(one.write) for one in DATASETS)
    page = re.sub(r"\d+( of )\d+(\s+are read)", rf"{right}\g<1>{len(DATASETS)}\g<2>", page)
    page = re.sub(r"\d+(\s+of the other\s+)\d+", rf"{helped}\g<1>{len(DATASETS) - right}", page)
    return _with_rows(page, (_dataset(one) for one in sorted(DATASETS, key=lambda one: one.name.lower())))


def _dataset(one: Known) -> str:
    folders = sorted({folder for name in one.files if (folder := name.rpartition("/")[0])})
    shown = ", ".join(f"`{folder}/`" for folder in folders[:_FOLDERS_SHOWN]) or f"`{min(one.files)}`"
    read, write = _LAYOUTS[one.layout] if one.found else "", "nothing"
    if one.write:
        write = "`layout={}`".format(one.write.replace("|", r"\|"))
    elif one.error:
        read, write = "not read automatically", "the error says what is missing"
    return f"| {one.name} | {shown} | {read} | {write} |"


def _errors(page: str) -> str:
    """Return the page with a table for each section of the module."""
    text = page.partition("\n## ")[0].rstrip()
    for section in re.split(r"^# --- ", inspect.getsource(errors), flags=re.MULTILINE)[1:]:
        text += f"\n\n## {section.partition(' ---')[0]}\n\n"
        text += "| error | also a | what it means | what to do |\n|---|---|---|---|\n"
        text += "\n".join(_error(getattr(errors, name)) for name in re.findall(r"^class (\w+)", section, re.MULTILINE))
    return f"{text}\n"


def _error(kind: type[errors.ColabstageError]) -> str:
    means, _, remedy = " ".join((inspect.getdoc(kind) or "").split()).partition("What to do: ")
    builtin = next((f"`{base.__name__}`" for base in kind.__bases__ if base.__module__ == "builtins"), "")
    cells = [text.strip().removesuffix(".") for text in (means, remedy)]
    row = " | ".join([f"`{kind.__name__}`", builtin, cells[0][:1].lower() + cells[0][1:], cells[1]])
    for words, target in _EXPLAINED.items():
        row = row.replace(words, f"[{words}]({target})")
    return f"| {row} |"


def _notebooks(page: str) -> str:
    """Return the page with a row for each notebook, the quickstart first."""
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"), key=lambda path: (path.stem != "quickstart", path.stem))
    return _with_rows(page, map(_notebook, paths))


def _notebook(path: Path) -> str:
    title = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"]).partition("\n")[0]
    return f"| [{title.removeprefix('# ')}](../notebooks/{path.name}) | [{path.stem}]({COLAB}{path.name}) |"


def _index() -> str:
    """Return the list of pages, in the form of llmstxt.org: each with the question that it answers."""
    listed = {
        posixpath.normpath(f"docs/{target}"): f"[{title}]({posixpath.normpath(f'docs/{target}')}): {row['question']}"
        for row in _ROW.finditer((ROOT / "docs/index.md").read_text(encoding="utf-8"))
        for title, target in _LINK.findall(row["pages"])
    }
    head = ["# colabstage", "", f"> {_summary()}", "", _section(README, "Install"), "", "## Pages", ""]
    return "\n".join([*head, *(f"- {page}" for page in listed.values()), ""])


def _skill() -> str:
    """Return the calls that most work needs, as the pages show them."""
    parts = [
        f"---\nname: colabstage\ndescription: {json.dumps(_summary(), ensure_ascii=False)}\n---",
        f"# colabstage\n\n{_section(README, 'Install')}",
        *(_shown(name, language) for name, language in _SHOWN),
        _LAST,
    ]
    return "\n\n".join(parts) + "\n"


def _summary() -> str:
    """Return the sentence in bold that the README begins with."""
    found = re.search(r"^\*\*(.+?)\*\*$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert found is not None
    return " ".join(found[1].split())


def _section(page: Path, heading: str) -> str:
    """Return what is below a heading, its links as words: they would lead elsewhere from another folder."""
    text = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n\n")[2].partition("\n## ")[0].strip()
    assert text, f"{page.name} has no section {heading}"
    return _LINK.sub(r"\1", text)


def _shown(name: str, language: str) -> str:
    page = ROOT / f"docs/{name}.md"
    code = next(block.code for block in blocks(page, language) if not block.why_not_run)
    title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return f"## [{title}](../../docs/{name}.md)\n\n```{language}\n{code}```"


if __name__ == "__main__":
    for path, text in made_pages().items():
        path.write_text(text, encoding="utf-8")
