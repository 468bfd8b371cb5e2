"""Turns an outcome into a commit, which says how the row changes. Pure; refuses invalid outcomes."""

from __future__ import annotations

import inspect
import traceback
from typing import Any, assert_never

from msgspec.structs import replace

from stepwell._core.await_unit import Common, NewAwaitUnit, common, new_interaction
from stepwell._core.commit import NOW, UNCHANGED, UNMOVED, Commit, Park, Placement, Values
from stepwell._core.instance import Claim
from stepwell._core.registry import Definition, Registry
from stepwell._core.serialization.bounds import check_bounds
from stepwell._core.serialization.codec import encode_value
from stepwell._core.start_request import admit_many
from stepwell._core.status import Hold, Status
from stepwell._core.validation import check_concurrency_key, check_delay, check_key, check_priority, check_queue
from stepwell.errors import InvalidOutcome
from stepwell.job import exponential
from stepwell.machine import step_name
from stepwell.outcomes import UNSET, Ask, AskEach, Await, Done, Next, Retry, Spawn, StepRef, Stop, Unset

MAX_MESSAGE = 4_000
MAX_TRACEBACK = 20_000
_OUTCOMES = (Next, Done, Await, Ask, Spawn, Retry, AskEach, Stop)  # the most common first


def transition(
    outcome: object,
    *,
    claim: Claim,
    definition: Definition,
    state: Any,
    mark: bytes | None,
    max_payload: int,
    error: BaseException | None = None,
    awaited: tuple[int, ...] = (),
    registry: Registry | None = None,
    keeps_state: bool = False,
) -> Commit:
    """The commit of an outcome. `state` is the state after the step, `mark` the mark of the state before it (None: the
    row has an older version's), `error` the error that `handle` received, `awaited` the signals of the step. With
    `keeps_state` the stored state stays, unless the outcome has another."""
    if not isinstance(outcome, _OUTCOMES):
        raise InvalidOutcome("outcome", _no_outcome(outcome, claim.step))
    given = outcome.state
    values = UNCHANGED
    if not definition.is_job and not (keeps_state and isinstance(given, Unset)):  # a job's arguments never change
        values = _changed_state(definition, state if isinstance(given, Unset) else given, mark, max_payload)
    match outcome:
        case Next():
            return _next(outcome, claim, definition, values, awaited, registry or Registry())
        case Done():
            return _done(outcome, claim, definition, values, max_payload)
        case Retry():
            return Commit(
                claim=claim, status=Status.RUNNABLE, step=claim.step, version=definition.version,
                attempt=claim.attempt + 1, placement=Placement(delay=check_delay("delay", outcome.delay)),
                keeps_awaits=True, values=values if error is None else replace(values, error=failure_text(error)),
            )  # fmt: skip
        case Await() | Spawn() | Ask() | AskEach():
            return _park(outcome, claim, definition, values, awaited, registry or Registry(), max_payload)
        case Stop():
            return failed(claim, definition.version, outcome.reason, state=values.state)
        case _:
            assert_never(outcome)


def _next(
    outcome: Next, claim: Claim, definition: Definition, values: Values, awaited: tuple[int, ...], registry: Registry
) -> Commit:
    key = outcome.concurrency_key
    step = target(definition, "step", outcome.step)
    needs = registry.limits.of_next(
        definition.needs.get(step), claim.needs, outcome.concurrency_limit, outcome.rate_limit, outcome.weight
    )
    placement = UNMOVED if needs is None else Placement(needs=needs)
    if not (key is UNSET and outcome.delay is None and outcome.queue is None and outcome.priority is None):
        placement = Placement(
            delay=NOW if outcome.delay is None else check_delay("delay", outcome.delay),
            queue=None if outcome.queue is None else check_queue(outcome.queue),
            priority=None if outcome.priority is None else check_priority(outcome.priority),
            switches_key=not isinstance(key, Unset),
            concurrency_key=None if isinstance(key, Unset) else check_concurrency_key(key),
            needs=needs,
        )
    return Commit(
        claim=claim, status=Status.RUNNABLE, step=step, version=definition.version, attempt=0, consumes=awaited,
        values=values, placement=UNMOVED if placement == UNMOVED else placement,
    )  # fmt: skip


def _park(
    outcome: Await | Spawn | Ask | AskEach,
    claim: Claim,
    definition: Definition,
    values: Values,
    awaited: tuple[int, ...],
    registry: Registry,
    max_payload: int,
) -> Commit:
    """The common part of all parks: the row continues at `then` once the signals, children or replies have come."""
    step = target(definition, "then", outcome.then)
    needs = registry.limits.of_next(definition.needs.get(step), claim.needs)
    parked = Commit(
        claim=claim,
        status=Status.AWAITING_EXTERNAL,
        step=step,
        version=definition.version,
        attempt=0,
        consumes=awaited,
        values=values,
        placement=UNMOVED if needs is None else Placement(needs=needs),
    )
    match outcome:
        case Await():
            return _await(outcome, parked, awaited)
        case Spawn():
            return _spawn(outcome, parked, registry, max_payload)
        case _:
            return _ask(outcome, parked, registry, max_payload)


def _await(outcome: Await, parked: Commit, awaited: tuple[int, ...]) -> Commit:
    if not outcome.names:
        raise InvalidOutcome("names", "an await without names never ends; name at least one signal")
    timeout = None if outcome.timeout is None else check_delay("timeout", outcome.timeout)
    if timeout is not None and not timeout:
        raise InvalidOutcome("timeout", "a timeout of zero waits for nothing; leave it out, or use Next")
    return replace(
        parked,
        status=Status.AWAITING_SIGNAL,
        park=Park(
            awaits=tuple(dict.fromkeys(check_key("names", name) for name in outcome.names)),
            timeout=timeout,
            handed=awaited,
        ),
        consumes=awaited if outcome.consume else (),
    )


def _spawn(outcome: Spawn, parked: Commit, registry: Registry, max_payload: int) -> Commit:
    children = admit_many(
        registry, outcome.children, tenant=parked.claim.tenant, max_payload=max_payload, field="children"
    )
    status = Status.AWAITING_CHILDREN if children else Status.RUNNABLE
    return replace(parked, status=status, park=Park(children=tuple(children)))


def _ask(outcome: Ask | AskEach, parked: Commit, registry: Registry, max_payload: int) -> Commit:
    """A park at a unit; the interactions of an AskEach are stored already."""
    shared = common_of(outcome, parked.claim.step, registry)
    interaction = new_interaction(outcome.request, shared, max_payload) if isinstance(outcome, Ask) else None
    return replace(parked, park=Park(asks=NewAwaitUnit(shared, interaction)))


def common_of(outcome: Ask | AskEach, step: str, registry: Registry) -> Common:
    """The properties that all interactions of an Ask share, checked against this engine."""
    sends = registry.transport(outcome.transport).sends
    return common(outcome, step, sends=sends, has_keys=registry.has_token_keys)


def _done(outcome: Done, claim: Claim, definition: Definition, values: Values, max_payload: int) -> Commit:
    if outcome.result is not None:
        if isinstance(outcome.result, _OUTCOMES):
            raise InvalidOutcome("result", _no_result(outcome.result, claim.step, definition))
        result = definition.result.encode(outcome.result)
        check_bounds(result, "result", max_payload)
        values = Values(state=values.state, result=result)
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=definition.version, attempt=claim.attempt,
        values=values,
    )  # fmt: skip


def target(definition: Definition, field: str, ref: StepRef) -> str:
    name = step_name(ref)
    if name is None:
        raise InvalidOutcome(field, _no_step(ref))
    return definition.step(name).name


def failed(claim: Claim, version: int, reason: object, *, state: str | None = None) -> Commit:
    """The commit that ends an instance as failed."""
    if not isinstance(reason, str | BaseException):
        raise InvalidOutcome("reason", f"expected a string or an exception, got {type(reason).__name__}")
    return Commit(
        claim=claim, status=Status.FAILED, step=claim.step, version=version, attempt=claim.attempt,
        keeps_awaits=True, values=Values(state=state, error=failure_text(reason)),
    )  # fmt: skip


def run_again(claim: Claim, reason: BaseException) -> Commit:
    """The commit that repeats a step after it lost its connection; the first time without a delay."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step=claim.step, version=claim.version, attempt=claim.attempt + 1,
        placement=Placement(delay=exponential(claim.attempt - 1)) if claim.attempt else UNMOVED, keeps_awaits=True,
        values=Values(error=failure_text(reason)),
    )  # fmt: skip


def unfit(claim: Claim, reason: str) -> Commit:
    """The commit that puts an instance on hold as unfit: this code cannot run it. Only the hold changes."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step=claim.step, version=claim.version, attempt=claim.attempt,
        placement=Placement(hold=Hold.UNFIT, hold_reason=_clean(reason, MAX_MESSAGE)), keeps_awaits=True,
    )  # fmt: skip


def failure_text(reason: str | BaseException) -> str:
    """An error as stored JSON: type, message, traceback."""
    if isinstance(reason, str):
        shown: dict[str, str | None] = {"type": "Stop", "message": _clean(reason, MAX_MESSAGE), "traceback": None}
    else:
        shown = {
            "type": type(reason).__qualname__,
            "message": _clean(_message(reason), MAX_MESSAGE),
            "traceback": _clean(_traceback(reason), MAX_TRACEBACK, keep_end=True),
        }
    return encode_value(shown, "error")


def _changed_state(definition: Definition, state: Any, mark: bytes | None, max_payload: int) -> Values:
    """The state as text if the step changed it, and that text decoded."""
    text, decoded = definition.state.changed(state, mark)
    if text is None:
        return UNCHANGED
    check_bounds(text, "state", max_payload)
    return Values(state=text, decoded=decoded)


def _no_outcome(value: object, step: str) -> str:
    if value is None:
        return f"step {step!r} returned None; return Next, Retry, Await, Spawn, Ask, Done or Stop"
    if isinstance(value, type):
        return f"step {step!r} returned the class {value.__name__}; return an object of it, as in Done()"
    shown = type(value).__name__
    return (f"step {step!r} returned {shown}, which is not an outcome; "
            "return Next, Retry, Await, Spawn, Ask, Done or Stop")  # fmt: skip


def _no_result(value: object, step: str, definition: Definition) -> str:
    shown = "Ask.each" if isinstance(value, AskEach) else type(value).__name__
    if not definition.is_job:
        return f"step {step!r} returned {shown} inside Done; return the {shown} itself"
    match value:
        case Done():
            advice = "return the value itself"
        case Retry() | Stop():
            advice = "raise an error to retry, or Cancel to fail"
        case _:
            advice = f"write a Machine, with a step that returns {shown}"
    return f"job {definition.name!r} returned {shown}, which is for steps: a job ends with what it returns; {advice}"


def _no_step(value: object) -> str:
    if inspect.iscoroutine(value):
        value.close()
        return f"{value!r} is not a step; name the step without calling it, as self.ship"
    return f"{value!r} is not a step; name one as self.ship or \"ship\""


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - the author's __str__ may raise anything
        return f"<its message cannot be shown: {type(second).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception as second:  # noqa: BLE001 - formatting calls the author's __str__ and __repr__
        return f"<the traceback cannot be shown: {type(second).__name__}>"


def _clean(text: str, limit: int, *, keep_end: bool = False) -> str:
    """Text that Postgres can store: no NUL, no lone surrogates, bounded."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    return "… " + text[-limit:] if keep_end else text[:limit] + " …"
