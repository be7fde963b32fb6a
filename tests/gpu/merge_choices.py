"""Puts measured choices of the linear family into a profile.

    python tests/gpu/merge_choices.py FOLDER/linear_choices.toml --target h200

Choices for the same problems are replaced, the table stays sorted by problem. Older files lack
parameters that tiles have gained since: they get the value that leaves the kernel as it was.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from policyc.kernels.linear_tiles import tile_of  # noqa: E402
from policyc.profiles.choices import merge_choices  # noqa: E402
from policyc.profiles.profile import Choice  # noqa: E402


def choices_of(sweep: dict[str, Any], clocks: str) -> list[Choice]:
    """The choices of a sweep; `clocks` stands in where the sweep did not read them under load.

    Raises:
        ValueError: neither the sweep nor `clocks` says how fast the GPU ran.
    """
    facts = sweep["measured"]
    clocks = facts.get("clocks", clocks)
    if not clocks:
        raise ValueError("the sweep has no clocks under load: say them with --clocks.")
    return [
        Choice(
            problem=row["problem"],
            parameters=tile_of(tuple(row["parameters"].items())).parameters,
            how="measured",
            microseconds=float(row["microseconds"]),
            spread=round(
                row["spread"] / row["microseconds"], 4
            ),  # of the time, as profiles have it
            date=datetime.date.fromisoformat(facts["date"]),
            driver=facts["driver"],
            clocks=clocks,
        )
        for row in sweep["choice"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sweep", type=Path, help="linear_choices.toml of linear_sweep.py")
    parser.add_argument("--target", required=True, help="profile to write into, such as h200")
    parser.add_argument("--clocks", default="", help="such as '1965 MHz SM under load'")
    arguments = parser.parse_args()
    sweep = tomllib.loads(arguments.sweep.read_text("utf-8"))
    choices = choices_of(sweep, arguments.clocks)
    path = merge_choices(arguments.target, choices)
    sys.stdout.write(f"{len(choices)} choices into {path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
