"""Print where the last test run spent its time: tests, files and fixtures, the slowest first.

Reads `build/durations.jsonl`, which `make test` writes, or the given file.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

ROWS = 40
DURATIONS = Path(__file__).resolve().parent.parent / "build/durations.jsonl"


class Cost:
    """Wall time, CPU time, and how often."""

    def __init__(self) -> None:
        self.wall_s = self.cpu_s = 0.0
        self.times = 0


def main(path: Path) -> int:
    """Read the file and print three tables."""
    if not path.exists():
        print(f"There is no {path}: run the tests first (make test).", file=sys.stderr)
        return 1
    tests, files, fixtures = (defaultdict[str, Cost](Cost) for _ in range(3))
    for line in path.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["kind"] == "fixture":
            costs = [fixtures[f"{one['name']} ({one['scope']})"]]
        else:
            costs = [tests[one["name"]], files[one["name"].partition("::")[0]]]
        for cost in costs:
            cost.wall_s += one["wall_s"]
            cost.cpu_s += one["cpu_s"]
            cost.times += one["kind"] in {"fixture", "call"}
    for title, table, rows in (("tests", tests, ROWS), ("files", files, ROWS // 2), ("fixtures", fixtures, ROWS // 4)):
        wall_s, cpu_s = (sum(getattr(cost, name) for cost in table.values()) for name in ("wall_s", "cpu_s"))
        print(f"\n{len(table)} {title}: {wall_s:.0f} s, of them {cpu_s:.0f} s computing\n")
        print("     wall  computing  times")
        for name, cost in sorted(table.items(), key=lambda item: -max(item[1].wall_s, item[1].cpu_s))[:rows]:
            print(f"{cost.wall_s:7.1f} s {cost.cpu_s:8.1f} s {cost.times:6}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else DURATIONS))
