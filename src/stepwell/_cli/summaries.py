"""The status of an instance in one line, for commands that have waited for it or changed it."""

from __future__ import annotations

import sys

from stepwell import Instance, Status
from stepwell._cli.exit_codes import NOT_SO, OK
from stepwell._cli.output import printable, record, to_json


def named(instance: Instance) -> str:
    """`Checkout #42`, and its key."""
    key = "" if instance.key is None else f" ({instance.key})"
    return printable(f"{instance.machine} #{instance.id}{key}")


def standing(instance: Instance, *, still: bool = False) -> str:
    """`Checkout #42 failed at step 'ship': ValueError: …`; `still` adds the word after a wait in vain."""
    error = instance.error
    match instance.status:
        case Status.DONE:
            text = "is done"
        case Status.FAILED:
            text = f"failed at step {instance.step!r}" + ("" if error is None else f": {error.type}: {error.message}")
        case Status.CANCELLED:
            text = "was cancelled" + ("" if error is None else f": {error.message}")
        case _:
            why = f", waiting for {instance.waiting_for}" if instance.waiting_for else ""
            text = f"is {'still ' if still else ''}{instance.status} at step {instance.step!r}{why}"
    return f"{named(instance)} {printable(text)}"


def report_wait(instance: Instance, *, reached: bool, as_json: bool) -> int:
    """Print the outcome of a wait: the result, the status, or the whole as JSON; `reached` if the wait succeeded."""
    is_good = reached and instance.status not in (Status.FAILED, Status.CANCELLED)
    if as_json:
        print(to_json(record(instance)))
    elif instance.status is Status.DONE:
        print(to_json(instance.result))
    elif is_good:
        print(standing(instance))
    if not is_good:
        print(f"stepwell: {standing(instance, still=not reached)}", file=sys.stderr)
    return OK if is_good else NOT_SO


def report_act(instance: Instance, *, refusal: str | None, as_json: bool) -> int:
    """Print the status of an instance after an operator's act, or why there was nothing to do."""
    if as_json:
        print(to_json(record(instance)))
    elif refusal is None:
        print(standing(instance))
    if refusal is not None:
        print(f"stepwell: {refusal}", file=sys.stderr)
    return OK if refusal is None else NOT_SO
