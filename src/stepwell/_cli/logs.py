"""The worker's log on stderr: readable lines or JSON lines, each with its instance."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from datetime import UTC, datetime

from stepwell._cli.output import Paint

_LABEL = re.compile(r".+ #(\d+)")  # how the engine names the task that runs a step
_COLOURS = {logging.WARNING: "yellow", logging.ERROR: "red", logging.CRITICAL: "red"}


def configure(*, verbose: bool, as_json: bool) -> None:
    """Send every log of the process, the app's own included, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if as_json else Lines(Paint.of(sys.stderr)))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    if verbose:
        logging.getLogger("stepwell").setLevel(logging.DEBUG)


class Lines(logging.Formatter):
    """`09:41:02.123 WARNING stepwell: executor: …`; lines of a step begin with its instance."""

    def __init__(self, paint: Paint) -> None:
        super().__init__()
        self._paint = paint

    def format(self, record: logging.LogRecord) -> str:
        at = f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S}.{int(record.msecs):03}"
        level = self._paint(f"{record.levelname:<7}", *([c] if (c := _COLOURS.get(record.levelno)) else []))
        about = f"{label}: " if (label := _label()) and label not in record.getMessage() else ""
        lines = [f"{self._paint(at, 'dim')} {level} {record.name}: {about}{record.getMessage()}"]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return "\n".join(lines)


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if found := _LABEL.fullmatch(_label() or ""):
            line |= {"label": found[0], "instance": int(found[1])}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _label() -> str | None:
    """The name of the task that runs this step; None outside of a step."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread without a loop
        return None
    name = task.get_name() if task is not None else ""
    return name if _LABEL.fullmatch(name) else None
