"""`python -m tests.chaos`: break everything around the workers for some minutes, and see whether all promises hold."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from pathlib import Path

from tests.chaos.run import USERS, Options, Run
from tests.chaos.schedule import FAULTS


def main() -> int:
    given = _parse()
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 30)
    options = Options(given.minutes, seed, given.postgres, given.only, given.workers, given.clients,
                      given.logs)  # fmt: skip
    report = asyncio.run(Run(options, _say).go())
    _say("")
    for line in report.lines():
        _say(line)
    return report.exit_code


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long faults come (default 5)")
    parser.add_argument("--seed", type=int, help="repeats a run: the faults, their order and lengths, the workload")
    parser.add_argument("--postgres", choices=("15", "18"), default="18", help="Debian's 15, or the wheel's 18")
    parser.add_argument("--only", type=_faults, default=tuple(FAULTS), metavar="FAULT,FAULT",
                        help=f"of {', '.join(FAULTS)}")  # fmt: skip
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default 3)")
    parser.add_argument("--clients", type=int, default=USERS, help=f"conversations at a time (default {USERS})")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs of servers and workers there")
    return parser.parse_args()


def _faults(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in FAULTS]:
        raise argparse.ArgumentTypeError(f"no fault is called {unknown[0]!r}; there are {', '.join(FAULTS)}")
    return names


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
