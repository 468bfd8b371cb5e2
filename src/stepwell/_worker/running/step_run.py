"""One run of one step: the definition that runs it, what the step receives, and the commit of its outcome."""

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
    """This code can not run that row: it waits, with the reason, for code that can."""


ReadOutputs = Callable[[int, int, int, int], Awaitable[list[tuple[int, str]]]]
"""What answers that went on by themselves have come to: of an instance and its unit, after an item, so many."""


class Surroundings(msgspec.Struct, frozen=True):
    """What all runs of a worker share."""

    registry: Registry
    max_payload: int
    resources: Any
    read_outputs: ReadOutputs | None = None
    keep_thread: Callable[[], RunThread] | None = None


class Received(msgspec.Struct, frozen=True):
    """What a step receives beside its state."""

    inbox: tuple[Signal, ...] = ()
    awaited: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()
    replies: tuple[Reply, ...] = ()
    wrong_reply: InvalidInput | None = None  # why a reply that came in by SQL is none of its type
    ended: AwaitTimeout | ItemFailed | None = None  # what it asked has ended so that the instance is to fail


NOTHING = Received()


class Run(msgspec.Struct, frozen=True):
    """The definition that runs a claim, its step, and the stored state."""

    claim: Claim  # of a row brought forward: at its new step
    definition: Definition
    step: Step
    loaded: str
    state: Any  # what the step is handed: `loaded`, decoded
    mark: bytes | None  # of that state, to tell whether the step has changed it
    is_foreign: bool  # the row has something else: an older version's state, or a misfit
    surroundings: Surroundings
    received: Received = NOTHING
    was_unchecked: bool = False
    misfit: InvalidInput | None = None  # why a state that came in by SQL is none; `handle` sees it as it came

    @property
    def is_ordinary(self) -> bool:
        """Whether its step is to run, with its commit by the committer."""
        received = self.received
        return (
            received.ended is None and received.wrong_reply is None and self.misfit is None
            and not self.step.transactional
        )  # fmt: skip

    @property
    def obstacle(self) -> InvalidInput | None:
        """Why the step can not run; it goes to `handle`."""
        return self.misfit or self.received.wrong_reply

    def context(self, connection: Any = None, *, in_handle: bool = False) -> Context[Any]:
        """What the step receives; once, as it may change the state. `handle` receives the state as it was loaded."""
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
        """What the answers to its questions have come to, some after an item."""
        read, unit_id = self.surroundings.read_outputs, self.claim.unit_id
        return [] if read is None or unit_id is None else await read(self.claim.id, unit_id, after, limit)

    def commit(self, outcome: object, ctx: Context[Any], error: BaseException | None = None) -> Commit:
        """The commit of an outcome; `error` is what `handle` saw. What an Ask.each asks was asked before."""
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
        """What the database gives to the step after this commit."""
        if commit.values.state is None:
            return Read(self.definition.state.as_stored(self.loaded))
        stored = self.definition.state.as_stored(commit.values.state)
        return Read(stored, commit.values.again if stored is commit.values.state else None)

    def failure(self, error: BaseException) -> Commit:
        """The commit that ends the instance because `handle` failed too."""
        state = self.loaded if self.is_foreign else None
        return failed(self.claim, self.definition.version, error, state=state)


def prepare(claim: Claim, read: Read, surroundings: Surroundings) -> Run:
    """Find what runs this row; a version that nobody registers any more is brought forward here."""
    if read.unreadable is not None:
        raise Unfit(f"what it was sent, or what its children left, can not be read: {read.unreadable}")
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
        state = definition.state.decode(loaded) if read.again is None else read.again
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
    if read.again is not None:
        mark: bytes | None = loaded.encode()  # nobody has changed it since it was written so
    else:
        mark = None if is_foreign or definition.is_job else definition.state.mark(state)
    received = _received(claim, read) if read.inbox or read.children else NOTHING
    run = Run(
        claim, definition, step, loaded, state, mark, is_foreign, surroundings, received, read.unchecked, misfit
    )
    return run if read.unit is None else replace(run, received=_with_replies(run, read.unit))


def check_shape(run: Run, asked: tuple[str, str] | None) -> None:
    """Raise Unfit if a run of a pipeline has asked about some of its items in another shape; `asked` is where their
    answers go on, and what asked."""
    if asked is not None and asked[0] not in run.definition.steps:
        raise Unfit(_of_another_shape(run.claim, run.definition, asked[1]))


def _of_another_shape(claim: Claim, definition: Definition, asked: str | None) -> str:
    at = repr(claim.step) if asked is None else f"the question of {asked!r} ({claim.step!r})"
    return (f"it stands at {at}, in {definition.name} as it was before its steps or questions changed under version "
            f"{definition.version}; register that one with version={definition.version} and the new one with "
            "another, or restart the run from its beginning")


def _received(claim: Claim, read: Read) -> Received:
    awaited = tuple([signal for signal in read.inbox if signal.name in claim.awaits])
    return Received(read.inbox, awaited, read.children)


def _with_replies(run: Run, unit: StoredAwaitUnit) -> Received:
    """What the run receives, with the replies of the unit that it waited for, as its type reads them."""
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
    """Let the newer version make its step and state of an older one's."""
    upcast = definition.owner.upcast
    assert upcast is not None  # noqa: S101 - Registry.successor returns only such
    try:
        state, ref = upcast(decode_value(loaded), claim.step, claim.version)
        return step_name(ref) or repr(ref), definition.state.admit(state)
    except Exception as error:
        raise Unfit(f"upcast from version {claim.version} failed: {type(error).__name__}: {error}") from error
