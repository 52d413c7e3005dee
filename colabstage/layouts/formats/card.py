"""The README of a dataset on the Hugging Face Hub: which files are of which split, by the `configs:` at its top."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Any

from colabstage.layouts import words
from colabstage.layouts.columns import show
from colabstage.layouts.reading import Source, broken, load_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator


# Other parts of the front matter describe licences, languages and features.
_CONFIGS = re.compile(r"^configs:.*\n(?:(?:[ -].*)?\n)*", re.MULTILINE)
_OTHERWISE = "; any layout that is named in layout= does without them"
_WILD = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
_WILDCARD = re.compile(r"\*\*/|\*\*|\*|\?|\[[\w!-]+\]")


def splits_of_card(source: Source) -> tuple[str, dict[str, str]]:
    """Return the README, and the split of each file that its configurations name; no files if it has none that state
    splits."""
    files = source.ending_in((".md",)).where(lambda name: posixpath.basename(name).lower() == "readme.md")
    if not files:
        return "", {}
    card = min(files, key=lambda entry: entry.name.count("/"))
    text = "\n".join(source.text(card).splitlines())
    front = text.partition("\n---")[0] if text.startswith("---\n") else ""
    block = _CONFIGS.search(f"{front}\n")
    try:
        configs = load_yaml(block[0])["configs"] if block else []
        stated = [*_globs_of(configs)]
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        what = f"its configs cannot be read ({show(error)})"
        raise broken(card.name, what, f"data_files with a split and a path{_OTHERWISE}") from error
    found: dict[str, str] = {}
    for split, path in stated:
        whole = posixpath.normpath(posixpath.join(posixpath.dirname(card.name), path))
        for name in filter(re.compile(_as_pattern(whole)).fullmatch, source.files.names):
            if found.setdefault(name, split) != split:
                what = f"'{card.name}' names it in the splits '{found[name]}' and '{split}'"
                raise broken(name, what, f"one split in all configs{_OTHERWISE}")
    return card.name, found


def _globs_of(configs: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each split that configurations name, as it is stored, with each of its paths, which may have wildcards."""
    for config in configs:
        parts = config.get("data_files") or ()
        if isinstance(parts, dict):
            parts = [{"split": split, "path": paths} for split, paths in parts.items()]
        # A path alone states no split.
        for part in (one for one in parts if isinstance(one, dict)):
            split, paths = part["split"], part["path"]
            for path in paths if isinstance(paths, list) else [paths]:
                yield words.split_name(split).split or split, posixpath.join(config.get("data_dir", ""), path)


def _as_pattern(path: str) -> str:
    """Return a path with wildcards as a regular expression."""
    texts = map(re.escape, _WILDCARD.split(path))
    wild = [_WILD.get(part, part.replace("[!", "[^")) for part in _WILDCARD.findall(path)]
    return "".join(text + part for text, part in zip(texts, [*wild, ""], strict=True))
