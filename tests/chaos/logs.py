"""What workers, clients and servers log during faults: a fault has to explain every error."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable
from pathlib import Path

FORMAT = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s"
CLIENTS = "clients.log"
LONGEST = 300
_LINE = re.compile(r"[\d:.]+ (?P<level>[A-Z]+) +(?P<logger>[\w.]+): (?P<text>.*)")
_SERVER = re.compile(r".*\] (?P<level>ERROR|PANIC): +(?P<text>.*)")
_DETAIL = re.compile(r".*\] DETAIL: +(?P<text>.*)")
_TROUBLE = re.compile(r"Traceback \(most recent call last\)|was never (retrieved|awaited)")
# asyncpg: a connect that times out before the server answers its request for TLS leaves a future that nothing awaits.
_OF_THE_DRIVER = re.compile(
    r"[^\n]* ERROR +asyncio: Future exception was never retrieved\n"
    r"future: <Future finished exception=ConnectionError\('unexpected connection_lost\(\) call'\)>\n"
)

# Errors of the engine's own log, and the faults that explain them.
EXPLAINED = {
    r"worker \d+: the lease is lost; \d+ steps were stopped; registering again": {
        "stop", "freeze", "unreachable", "failover"
    },
    r"worker \d+: the server's timeline has changed; commits may be lost": {"failover"},
}  # fmt: skip
# Errors of the server's log: those that the engine means to get, and those of faults.
ANSWERS = (
    r"canceling statement due to (lock timeout|statement timeout|user request)",
    r'relation "stepwell.meta" does not exist',  # the first migration asks
    r'duplicate key value violates unique constraint "instances_concurrency_key"',  # of two claims of one key
)
REFUSALS = {
    r"cannot execute .* in a read-only transaction": {"read-only"},
    r"could not (extend|write|create|access|open) .*: No space left on device": {"fill"},
    r"could not write to file .*: No space left on device": {"fill"},
    r"could not access status of transaction \d+; Could not write to file .*: No space left on device": {"fill"},
}


def write_log(file: Path) -> logging.Handler:
    """Send the log of this process, the clients' engine, to a file."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter(FORMAT, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    return handler


class Logs:
    """The logs of a run, read from fault to fault."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}  # bytes
        self.warnings = 0

    def unexplained(self, faults: Collection[str]) -> list[str]:
        """What was logged since the last call, and that none of these faults explains."""
        found = []
        for log in sorted(self._folder.glob("*.log")):
            judge = unexplained_of_server if log.name.startswith("server-") else unexplained
            found += [f"{log.stem}: {problem[:LONGEST]}" for problem in judge(self._new_lines(log), faults)]
        return found

    def _new_lines(self, log: Path) -> list[str]:
        """Whole lines only: the last line of the log may be incomplete."""
        with log.open("rb") as opened:
            opened.seek(self._read.get(log, 0))
            text = opened.read()
        text = text[: text.rfind(b"\n") + 1]
        self._read[log] = self._read.get(log, 0) + len(text)
        lines = _OF_THE_DRIVER.sub("", text.decode(errors="replace")).splitlines()
        self.warnings += sum(" WARNING " in line for line in lines)
        return lines


def unexplained(lines: Iterable[str], faults: Collection[str]) -> list[str]:
    """Errors and tracebacks in the log of a worker or a client."""
    found = []
    for line in lines:
        match = _LINE.match(line)
        is_error = match is not None and match["level"] in ("ERROR", "CRITICAL")
        if is_error and match is not None and _is_explained(match["text"], EXPLAINED, faults):
            continue
        if is_error or _TROUBLE.search(line):
            found.append(line)
    return found


def unexplained_of_server(lines: Iterable[str], faults: Collection[str]) -> list[str]:
    """Errors in the log of a server, and panics."""
    found = []
    for line in _with_details(lines):
        match = _SERVER.match(line)
        if match is None:
            continue
        is_panic = match["level"] == "PANIC"
        is_meant = not is_panic and any(re.match(answer, match["text"]) for answer in ANSWERS)
        if not is_meant and not _is_explained(match["text"], REFUSALS, faults):
            found.append(line)
    return found


def _with_details(lines: Iterable[str]) -> list[str]:
    """Each log line with its detail: some errors give their cause only there."""
    joined: list[str] = []
    for line in lines:
        detail = _DETAIL.match(line)
        if detail is not None and joined:
            joined[-1] += f"; {detail['text']}"
        else:
            joined.append(line)
    return joined


def _is_explained(text: str, explained: dict[str, set[str]], faults: Collection[str]) -> bool:
    return any(re.match(pattern, text) and not by.isdisjoint(faults) for pattern, by in explained.items())
