"""`python -m policyc` and the console script `policyc`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave the process with its exit code (docs/exit-codes.md)."""
    from policyc.compiler.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
