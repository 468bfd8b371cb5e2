"""One run of one step: its definition, its inputs, and the commit of its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from stepwell._core.commit import Commit
from stepwell._core.instance import Child, Claim, Signal
from stepwell._core.interaction import InteractionStatus, Reply
from stepwell._core.registry import Definition, Registry
from stepwell._core.serialization.codec import decode_value
from stepwell._core.serialization.reply_type import find_type
from stepwell._core.transition import failed, transition
from stepwell._process.threads import RunThread
from stepwell._store.await_units import StoredAwaitUnit
from stepwell._worker.active_claims import Read
from stepwell.context import Context
from stepwell.errors import (
    AwaitTimeout,
    InvalidInput,
    InvalidState,
    ItemFailed,
    StepwellError,
    UnknownStep,
)
from stepwell.machine import Step, step_name


class Unfit(StepwellError):
    """This code cannot run the row: it is put on hold, with the reason, until other code can."""


ReadOutputs = Callable[[int, int, int, int], Awaitable[list[tuple[int, str]]]]
"""Reads the results of continuations; arguments: instance, await unit, item to read after, number."""


class Surroundings(msgspec.Struct, frozen=True):
    """The objects that all runs of a worker share."""

    registry: Registry
    max_payload: int
    resources: Any
    read_outputs: ReadOutputs | None = None
    keep_thread: Callable[[], RunThread] | None = None


class Received(msgspec.Struct, frozen=True):
    """The inputs of a step beside its state."""

    inbox: tuple[Signal, ...] = ()
    awaited: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()
    replies: tuple[Reply, ...] = ()
    wrong_reply: InvalidInput | None = None  # why a reply that came from SQL does not fit its type
    ended: AwaitTimeout | ItemFailed | None = None  # why its await unit has ended such that the instance fails


NOTHING = Received()


class Run(msgspec.Struct, frozen=True):
    """The run of a claim: its definition, its step, and the stored state."""

    claim: Claim  # after an upcast: at its new step
    definition: Definition
    step: Step
    loaded: str
    state: Any  # the step receives it: `loaded`, decoded
    mark: bytes | None  # of that state, to detect whether the step changes it
    is_foreign: bool  # the row stores another state: an older version's, or one that does not fit
    surroundings: Surroundings
    received: Received = NOTHING
    was_unchecked: bool = False
    misfit: InvalidInput | None = None  # why a state that came from SQL does not fit; `handle` sees it undecoded

    @property
    def is_ordinary(self) -> bool:
        """Whether its step runs, and the committer commits its outcome."""
        received = self.received
        return (
            received.ended is None and received.wrong_reply is None and self.misfit is None
            and not self.step.transactional
        )  # fmt: skip

    @property
    def obstacle(self) -> InvalidInput | None:
        """Why the step cannot run; `handle` receives it."""
        return self.misfit or self.received.wrong_reply

    def context(self, connection: Any = None, *, in_handle: bool = False) -> Context[Any]:
        """The context for the step. Call it once: the step may change the state. `handle` gets the state as loaded."""
        claim, state = self.claim, self.state
        if in_handle:
            state = self.definition.state.decode(self.loaded) if self.misfit is None else decode_value(self.loaded)
        ctx = Context(
            id=claim.id, key=claim.key, tenant=claim.tenant, machine=claim.machine, version=self.definition.version,
            step=self.step.name, attempt=claim.attempt, fence=claim.fence, state=state, worker_id=claim.worker_id,
            resources=self.surroundings.resources, _connection=connection, _in_handle=in_handle,
            _keep_thread=self.surroundings.keep_thread,
        )  # fmt: skip
        received = self.received
        if received is NOTHING and claim.unit_id is None:
            return ctx
        return replace(
            ctx, inbox=received.inbox, awaited=received.awaited, children=received.children, replies=received.replies,
            _outputs=self._outputs,
        )  # fmt: skip

    async def _outputs(self, after: int, limit: int) -> list[tuple[int, str]]:
        """The results of its continuations, up to `limit` after an item."""
        read, unit_id = self.surroundings.read_outputs, self.claim.unit_id
        return [] if read is None or unit_id is None else await read(self.claim.id, unit_id, after, limit)

    def commit(self, outcome: object, ctx: Context[Any], error: BaseException | None = None) -> Commit:
        """The commit of an outcome; `error` is what `handle` received. The items of an Ask.each are already stored."""
        awaited = self.received.awaited
        commit = transition(
            outcome, claim=self.claim, definition=self.definition, state=ctx.state, mark=self.mark,
            max_payload=self.surroundings.max_payload, error=error,
            awaited=tuple([signal.id for signal in awaited]) if awaited else (),
            registry=self.surroundings.registry, keeps_state=self.misfit is not None,
        )  # fmt: skip
        if not self.was_unchecked:
            return commit
        return replace(commit, values=replace(commit.values, was_unchecked=True))

    def read_after(self, commit: Commit) -> Read:
        """The inputs of the next step, as the database would return them after this commit."""
        if commit.values.state is None:
            return Read(self.definition.state.as_stored(self.loaded))
        stored = self.definition.state.as_stored(commit.values.state)
        return Read(stored, commit.values.decoded if stored is commit.values.state else None)

    def failure(self, error: BaseException) -> Commit:
        """The commit that ends the instance because `handle` failed too."""
        state = self.loaded if self.is_foreign else None
        return failed(self.claim, self.definition.version, error, state=state)


def prepare(claim: Claim, read: Read, surroundings: Surroundings) -> Run:
    """Find the definition for this row; a row of an unregistered version is upcast."""
    if read.unreadable is not None:
        raise Unfit(f"a signal, or the state or result of a child, cannot be read: {read.unreadable}")
    definition = surroundings.registry.find(claim.machine, claim.version)
    loaded, is_foreign = read.state, False
    if definition is None:
        definition = surroundings.registry.successor(claim.machine, claim.version)
        if definition is None:
            raise Unfit(f"{claim.machine} version {claim.version} is not registered")
        name, loaded = _bring_forward(definition, claim, loaded)
        claim, is_foreign = replace(claim, step=name), True
    misfit: InvalidInput | None = None
    state: Any = None
    try:
        step = definition.step(claim.step)
        state = definition.state.decode(loaded) if read.decoded is None else read.decoded
    except InvalidState as error:
        if not read.unchecked:
            raise Unfit(f"{error} (in {definition.name} version {definition.version})") from error
        misfit, is_foreign = error, True
    except UnknownStep as error:
        if definition.pipeline is not None and definition.pipeline.shape is not None:
            asked = None if read.unit is None else read.unit.step
            raise Unfit(_of_another_shape(claim, definition, asked)) from error
        raise Unfit(f"{error} (in {definition.name} version {definition.version})") from error
    except InvalidInput as error:
        raise Unfit(f"{error} (in {definition.name} version {definition.version})") from error
    if read.decoded is not None:
        mark: bytes | None = loaded.encode()  # unchanged since it was encoded
    else:
        mark = None if is_foreign or definition.is_job else definition.state.mark(state)
    received = _received(claim, read) if read.inbox or read.children else NOTHING
    run = Run(
        claim, definition, step, loaded, state, mark, is_foreign, surroundings, received, read.unchecked, misfit
    )
    return run if read.unit is None else replace(run, received=_with_replies(run, read.unit))


def check_shape(run: Run, asked: tuple[str, str] | None) -> None:
    """Raise Unfit if a run of a pipeline has stored items in another shape; `asked` is the step of their continuations,
    and the step that asked."""
    if asked is not None and asked[0] not in run.definition.steps:
        raise Unfit(_of_another_shape(run.claim, run.definition, asked[1]))


def _of_another_shape(claim: Claim, definition: Definition, asked: str | None) -> str:
    at = repr(claim.step) if asked is None else f"the await step {asked!r} ({claim.step!r})"
    return (f"it is at {at} of an earlier {definition.name}: its steps were changed without a new version; register "
            f"the earlier pipeline with version={definition.version} and the new one with another version, or restart "
            "the run from its first step")


def _received(claim: Claim, read: Read) -> Received:
    awaited = tuple([signal for signal in read.inbox if signal.name in claim.awaits])
    return Received(read.inbox, awaited, read.children)


def _with_replies(run: Run, unit: StoredAwaitUnit) -> Received:
    """The inputs of the run, with the decoded replies of the await unit that it waited for."""
    received = run.received
    if unit.status == "timed_out" and unit.on_timeout == "fail":
        late = next((reply.id for reply in unit.replies if reply.status is InteractionStatus.TIMED_OUT), "")
        return replace(received, ended=AwaitTimeout(run.definition.name, unit.step, late))
    if unit.is_streamed:
        if unit.status == "completed":
            return received
        why = next((reply.error for reply in unit.replies if reply.error is not None), None)
        return replace(received, ended=ItemFailed(run.definition.name, unit.step, run.claim.id, why))
    kind = find_type(unit.reference, type(run.definition.owner.object).__module__)
    if kind is None:
        raise Unfit(f"the type of its replies, {unit.reference}, is not in this process; import it beside the machine")
    replies: list[Reply] = []
    wrong: InvalidInput | None = None
    for stored in unit.replies:
        value = None
        try:
            value = None if stored.reply is None else kind.decode(stored.reply)
        except InvalidInput as error:
            wrong = wrong or error
        index = None if unit.is_one else stored.item
        replies.append(
            Reply(stored.status, stored.id, value, stored.actor, stored.finished_at, index, stored.error)
        )
    return replace(received, replies=tuple(replies), wrong_reply=wrong)


def _bring_forward(definition: Definition, claim: Claim, loaded: str) -> tuple[str, str]:
    """Upcast step and state of an older version to those of a newer one."""
    upcast = definition.owner.upcast
    assert upcast is not None  # noqa: S101 - Registry.successor returns only definitions that have it
    try:
        state, ref = upcast(decode_value(loaded), claim.step, claim.version)
        return step_name(ref) or repr(ref), definition.state.admit(state)
    except Exception as error:
        raise Unfit(f"upcast from version {claim.version} failed: {type(error).__name__}: {error}") from error
