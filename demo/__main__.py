"""Train from a simulated Google Drive, straight and staged, and print the comparison.

    python -m demo [--quick] [--json] [--time-scale X]

Real handwritten digits are stored as JPEGs on the simulated Drive. A small network is trained straight from there,
after staging, and in a second session that starts from the cached pack. It takes under three minutes. Ends with exit
code 1 if the figures contradict what the demo claims.
"""

from __future__ import annotations

import argparse
import json
import sys

from demo.report import Narrator
from demo.run import FULL, QUICK, run_demo
from simulated_drive.drive import fuse_problem


def main() -> None:
    """Run the demo that the command line describes."""
    parser = argparse.ArgumentParser(prog="python -m demo", description="Train from a simulated Drive, then staged.")
    parser.add_argument("--quick", action="store_true", help="fewer images: takes half a minute")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON on stdout, all else on stderr")
    parser.add_argument("--time-scale", type=float, default=1.0, help="multiplies every delay of the simulated Drive")
    arguments = parser.parse_args()
    if (problem := fuse_problem()) is not None:
        sys.exit(f"The demo mounts a simulated Drive, and here it cannot. {problem}")
    result = run_demo(
        QUICK if arguments.quick else FULL,
        time_scale=arguments.time_scale,
        narrator=Narrator(sys.stderr if arguments.json else sys.stdout),
    )
    if arguments.json:
        print(json.dumps(result.to_dict(), indent=2))
    # A demo that breaks a promise is a failure, so that it is noticed.
    if result.broken_claims:
        sys.exit("The demo did not show what it claims: " + " ".join(result.broken_claims))


if __name__ == "__main__":
    main()
