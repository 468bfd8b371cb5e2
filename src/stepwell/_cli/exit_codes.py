"""The exit codes that scripts can rely on, and which error gives which code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from traceback import print_exception
from typing import Final

from stepwell.errors import (
    CompletionRefused,
    DefinitionError,
    Duplicate,
    InstanceCancelled,
    InstanceFailed,
    InvalidInput,
    InvalidReply,
    NoTarget,
    NotFound,
    SettingError,
    StepwellError,
)

OK: Final = 0
NOT_SO: Final = 1  # the request does not apply: not found, nothing to do, failed, outdated
USAGE: Final = 2
DATABASE: Final = 3  # the database cannot be reached, or is not what the engine needs
SIGNALLED: Final = 128  # plus the signal's number, as in shells


class UsageError(StepwellError):
    """The command line asks for something impossible."""


def exit_code(error: StepwellError) -> int:
    """The exit code of an error. An error that is neither a miss nor the caller's mistake came from the database."""
    match error:
        case UsageError() | InvalidInput() | InvalidReply() | SettingError() | DefinitionError():
            return USAGE
        case NotFound() | NoTarget() | Duplicate() | InstanceFailed() | InstanceCancelled() | CompletionRefused():
            return NOT_SO
        case _:
            return DATABASE


def reported(act: Callable[[], int], *, verbose: bool) -> int:
    """The exit code of an act; its error is printed in one line, or with the traceback if `verbose`."""
    try:
        return act()
    except StepwellError as error:
        if verbose:
            print_exception(error)
        print(f"stepwell: {in_words(error)}", file=sys.stderr)
        return exit_code(error)


def in_words(error: StepwellError) -> str:
    """The message of an error for the command line, which has flags instead of keywords."""
    if isinstance(error, Duplicate):
        return f"key {error.key!r} is occupied by instance {error.id}"
    return str(error)
