"""Accepts completions: finds the interaction, checks the reply against its type, and wakes the instance."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from stepwell._client.batching import Batcher
from stepwell._client.interaction_cache import InteractionCache
from stepwell._client.offload import LARGE, LargeTextThread
from stepwell._core.interaction import Answer, Answered, Completion
from stepwell._core.registry import Registry
from stepwell._core.resume_token import TokenFacts, TokenKeys, key_of
from stepwell._core.serialization.bounds import check_bounds
from stepwell._core.serialization.codec import encode_raw, encode_value
from stepwell._core.serialization.reply_type import ReplyType, find_type, project
from stepwell._core.store_errors import Contention, Outage, Refusal
from stepwell._core.validation import check_key, check_tenant, check_uuid
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._store import interactions
from stepwell._store.await_units import Settled
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import retried
from stepwell._store.interactions import Found
from stepwell._store.operations.complete import CompletePaths, Given, Verdict, complete
from stepwell.config import Settings
from stepwell.errors import (
    CompletionConflict,
    CompletionRefused,
    CompletionTooLate,
    InteractionClosed,
    InvalidInput,
    InvalidReply,
    InvalidToken,
    PayloadTooLarge,
    ProjectionFailed,
    UnknownInteraction,
)

PAUSES = (0.002, 0.005, 0.01, 0.02)  # seconds, before a completion waits for the lock of its instance
FOREIGN = "the token is of another interaction, or of another deadline"
LARGEST_GROUP = 256  # completions that share a lookup and a statement


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of valid form: what it names, and its reply, as text if no type is needed to write it."""

    named: tuple[str | None, str | None, str]
    reply: Any
    text: str | None
    actor: str | None
    facts: TokenFacts | None
    token_key: str | None  # that signed the facts
    token_error: InvalidToken | None  # of a token given beside a name: raised once the interaction is found

    @property
    def shown(self) -> str:
        return self.named[0] or f"with correlation {self.named[1]}"


_Result: TypeAlias = Completion | CompletionRefused | InvalidInput | Given | Outage
"""The result of a completion. A Given has none yet: another transaction locks its instance."""


class CompleteOperations:
    """Accepts completions; concurrent ones share statements."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, settings: Settings, keys: TokenKeys,
        cache: InteractionCache,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._keys = keys
        self._interaction_cache = cache
        self._group = Batcher(
            self._complete, lambda call: len(call.text or ""), waits_a_turn=True, largest=LARGEST_GROUP, at_once=2
        )
        self._accepting = asyncio.Lock()  # one group at a time: two would wait for each other's instances
        self._last: asyncio.Future[None] | None = None  # done when the latest group has its results
        self._batchers: dict[int, Batcher[Given, Completion | CompletionRefused]] = {}  # by locked instance
        self._waiting = Counter[int]()  # completions that wait, by instance
        self._paths = CompletePaths()
        self._large_texts = LargeTextThread()

    def close(self) -> None:
        """Accept no more large replies."""
        self._large_texts.close()

    async def complete(self, answer: Answer) -> Completion:
        """Accept one completion; CompletionRefused if it is refused, which changes nothing."""
        self._database.check_loop()
        call = await self._admit(answer)
        result = await self._group.submit(call)
        for pause in PAUSES:  # mostly a completion or the worker locks it: another group is cheaper
            if not isinstance(result, Given):
                break
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            result = await self._group.submit(call)
        if isinstance(result, Given):
            result = await self._complete_locked(result)
        if isinstance(result, Completion):
            return result
        raise result

    def settled(self, settled: Settled) -> None:
        """Notify workers of the queues, transports and deadlines that a completion has changed."""
        for queue, count in Counter(settled.queues).items():
            self._notifier.notify_work(queue, count)
        for transport in settled.transports:
            self._notifier.notify_dispatch(transport)
        if settled.next_deadline is not None:
            self._notifier.notify_due()

    async def _admit(self, answer: Answer) -> _Call:
        """Check what can be checked without the database."""
        facts, token_error = None, None
        try:
            facts = None if answer.token is None else self._verify(answer.token)
        except InvalidToken as error:
            if answer.interaction is None and answer.correlation is None:
                raise
            token_error = error
        named = self._named(answer, facts)
        if facts is not None and not facts.is_of(*named[:2]):
            token_error = InvalidToken(None, FOREIGN)  # whether or not the interaction exists
        # JSON that came with an invalid token is not decoded.
        is_read = token_error is None or not isinstance(answer.reply, msgspec.Raw)
        return _Call(
            named=named,
            reply=answer.reply,
            text=await self._text(answer.reply) if is_read else None,
            actor=None if answer.actor is None else check_key("actor", answer.actor),
            facts=facts,
            token_key=key_of(answer.token) if facts is not None and answer.token is not None else None,
            token_error=token_error,
        )

    async def _text(self, reply: object) -> str | None:
        """The reply as JSON; None if only its type can encode it."""
        most = self._settings.max_payload
        if isinstance(reply, msgspec.Raw):
            raw = bytes(reply)
            return await self._large_texts.run(len(raw), encode_raw, raw, "reply", most)
        try:
            return encode_value(reply, "reply", most)
        except PayloadTooLarge:
            raise
        except InvalidInput:
            return None

    def _verify(self, token: object) -> TokenFacts:
        if not isinstance(token, str) or not token.strip():
            raise InvalidToken(None, "the token is blank; leave it out, or pass it as it was issued")
        return self._keys.verify(token)

    def _named(self, answer: Answer, facts: TokenFacts | None) -> tuple[str | None, str | None, str]:
        tenant = answer.tenant if answer.tenant is not None else facts.tenant if facts else self._settings.tenant
        check_tenant(tenant)
        if answer.interaction is None and answer.correlation is None:
            if facts is None:
                raise InvalidInput("interaction", "name the interaction by its id, its correlation or its token")
            return facts.interaction, None, tenant
        return (
            None if answer.interaction is None else check_uuid("interaction", answer.interaction),
            None if answer.correlation is None else check_uuid("correlation", answer.correlation),
            tenant,
        )

    async def _complete(self, calls: list[_Call]) -> Sequence[_Result]:
        """Accept a group of completions; returns results in the order of the calls. The lookup of one group overlaps
        the statements of the group before it."""
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        try:
            results, waiting = await self._look_up(calls)
            if before is not None:
                await before  # the future itself: this continues before the callers of that group
            async with self._accepting:
                for round_ in _rounds(waiting):
                    results |= await self._accept(round_)
        finally:
            if not own.done():
                own.set_result(None)
        return [results[position] for position in range(len(calls))]

    async def _look_up(self, calls: list[_Call]) -> tuple[dict[int, _Result], dict[int, Given]]:
        """Look up a group: the results that are known by the lookup alone, and the completions that remain, by their
        positions."""
        results: dict[int, _Result] = {}
        found = await self._find(calls)
        waiting: dict[int, Given] = {}
        types: dict[tuple[str, int, str], ReplyType | None] = {}
        read = 0  # characters, in this turn of the loop
        for position, call in enumerate(calls):
            if position not in found:
                results[position] = _unknown(call)
                continue
            if call.token_error is not None:
                results[position] = call.token_error
                continue
            kind = self._type(found[position], types)
            size = _size_read(call, found[position], kind)
            if read + size >= LARGE > size:
                await asyncio.sleep(0)
                read = 0
            read = 0 if size >= LARGE else read + size
            try:
                waiting[position] = await self._large_texts.run(
                    size, _given, call, found[position], kind, self._settings.max_payload
                )
            except InvalidInput as error:
                results[position] = error
        return results, waiting

    async def _find(self, calls: list[_Call]) -> dict[int, Found]:
        """The interactions that calls name, by their positions. A cached one serves one completion: if that is not
        accepted at once, the interaction may have ended, and is looked up."""
        found: dict[int, Found] = {}
        for position, call in enumerate(calls):
            cached = self._interaction_cache.pop(*call.named)
            if cached is not None:
                found[position] = cached
        unknown = [position for position in range(len(calls)) if position not in found]
        if unknown:
            read = await interactions.find(self._database, [calls[position].named for position in unknown])
            found |= {unknown[n]: one for n, one in read.items()}
        return found

    async def _accept(self, round_: dict[int, Given]) -> dict[int, _Result]:
        if probes.hooks:
            await probes.reach("complete.found", ids=[given.found.id for given in round_.values()])
        results: dict[int, _Result] = {}
        rest = round_
        try:
            while rest:
                given = list(rest.values())
                result = await retried(partial(complete, self._database, given, self._paths))
                self.settled(result.settled)
                positions = list(rest)
                results |= {positions[n]: _result(given[n], verdict) for n, verdict in result.verdicts.items()}
                rest = {positions[n]: given[n] for n in result.rest}
        except (Contention, Refusal, Outage) as error:
            if not results:
                raise
            # The fast path has accepted the others. These are unchanged and are retried; after an Outage that is
            # unknown.
            results |= {position: Outage(str(error)) for position in rest} if isinstance(error, Outage) else rest
        if probes.hooks:
            await probes.reach("complete.admitted", ids=[given.found.id for given in round_.values()])
        return results

    async def _complete_locked(self, given: Given) -> Completion | CompletionRefused:
        """Another transaction locks the instance: wait for it, on one connection for all completions of the instance.

        Separate transactions of very many completions would take the lock in turn and never leave it free.
        """
        id_ = given.found.instance_id
        batcher = self._batchers.setdefault(id_, Batcher(self._complete_waiting, lambda one: len(one.reply)))
        self._waiting[id_] += 1
        try:
            return await batcher.submit(given)
        finally:
            self._waiting[id_] -= 1
            if not self._waiting[id_]:
                del self._batchers[id_], self._waiting[id_]

    async def _complete_waiting(self, waiting: list[Given]) -> Sequence[Completion | CompletionRefused]:
        """Accept completions of one instance, each interaction at most once per statement; returns results in order."""
        results: dict[int, Completion | CompletionRefused] = {}
        for round_ in _rounds(dict(enumerate(waiting))):
            positions, ready = list(round_), list(round_.values())
            result = await retried(partial(complete, self._database, ready, self._paths, waits=True))
            self.settled(result.settled)
            for n, verdict in result.verdicts.items():
                ended = _result(ready[n], verdict)
                results[positions[n]] = UnknownInteraction(ready[n].found.id) if isinstance(ended, Given) else ended
        return [results[position] for position in range(len(waiting))]

    def _type(self, found: Found, types: dict[tuple[str, int, str], ReplyType | None]) -> ReplyType | None:
        """The type of a reply, if this process has it; else the database checks by its JSON Schema. `types` caches:
        the completions of one group mostly share a type."""
        named = found.machine, found.version, found.reference
        if named not in types:
            definition = self._registry.find(found.machine, found.version)
            home = None if definition is None else type(definition.owner).__module__
            types[named] = None if home is None else find_type(found.reference, home)
        return types[named]


def _rounds(waiting: dict[int, Given]) -> Iterator[dict[int, Given]]:
    """Completions by their positions, in rounds: each interaction at most once per round, its first completion first.
    """
    while waiting:
        first = {given.found.id: position for position, given in reversed(waiting.items())}
        yield {position: waiting.pop(position) for position in sorted(first.values())}


def _unknown(call: _Call) -> UnknownInteraction:
    """No such interaction. The cause is the token's error, if there is one: an API may report only that."""
    error = UnknownInteraction(call.shown)
    error.__cause__ = call.token_error
    return error


def _size_read(call: _Call, found: Found, kind: ReplyType | None) -> int:
    """How many characters are decoded to check a reply."""
    if kind is None or (kind.decoder is None and kind.projection is None):
        return 0
    return max(len(call.text or ""), len(found.request or ""))


def _given(call: _Call, found: Found, kind: ReplyType | None, max_payload: int) -> Given:
    """A completion, checked against its type. May run in a thread: it reads no mutable state."""
    projection = None if kind is None else kind.projection
    sent = kind if projection is None else projection.facts
    text, value, problem = call.text, None, None
    if text is None:
        if sent is None:
            encode_value(call.reply, "reply")  # raises the reason
        assert sent is not None  # noqa: S101 - otherwise encode_value has raised
        text = sent.encode(call.reply)
        check_bounds(text, "reply", max_payload)
    is_checked = sent is not None and (found.request is None or projection is not None)
    if sent is not None and is_checked:
        try:
            if projection is None:
                sent.check(text)
            else:
                value = sent.admit(text)
        except InvalidInput as error:
            problem = str(error)
    reply, facts = text, None
    if kind is not None and projection is not None and problem is None:
        facts = text
        try:
            reply = _project(call, found, kind, value)
            check_bounds(reply, "reply", max_payload)
        except Exception as error:  # noqa: BLE001 - the author's function may raise anything
            problem = f"projector: {type(error).__name__}: {error}"
    token = None if call.facts is None else msgspec.structs.astuple(call.facts)
    return Given(
        found=found, reply=reply, actor=call.actor, token=token, token_key=call.token_key, facts=facts,
        is_checked=is_checked, problem=problem,
    )  # fmt: skip


def _project(call: _Call, found: Found, kind: ReplyType, facts: object) -> str:
    """The reply that a projector makes from the facts that were sent."""
    assert found.request is not None  # noqa: S101 - it is there where a projector is
    assert found.asked_at is not None  # noqa: S101 - as above
    return project(kind, found.request, facts, Answered(found.id, call.actor, found.asked_at))


def _completion(given: Given, *, is_duplicate: bool = False) -> Completion:
    found = given.found
    return Completion(found.id, found.instance_id, found.machine, found.step, is_duplicate)


def _result(given: Given, verdict: Verdict | None) -> Completion | CompletionRefused | Given:
    """What became of a completion; itself if its instance was locked."""
    if verdict is None:
        return given
    if verdict.verdict in ("admitted", "duplicate"):
        return _completion(given, is_duplicate=verdict.verdict == "duplicate")
    return _REFUSALS[verdict.verdict](given, verdict)


def _refuse_token(given: Given, _: Verdict) -> InvalidToken:
    return InvalidToken(given.found.id, "requires its token" if given.token is None else FOREIGN)


def _refuse_retired(given: Given, _: Verdict) -> InvalidToken:
    said = f"the token was signed with key {given.token_key!r}, which is retired; issue a new one, under another key"
    return InvalidToken(given.found.id, said)


def _refuse_type(given: Given, verdict: Verdict) -> InvalidReply | ProjectionFailed:
    field, _, problem = (verdict.problem or "reply: is of the wrong type").partition(": ")
    if field == "projector":
        return ProjectionFailed(given.found.id, problem)
    return InvalidReply(given.found.id, field, problem)


_REFUSALS: dict[str, Callable[[Given, Verdict], CompletionRefused]] = {
    "token": _refuse_token,
    "retired": _refuse_retired,
    "conflict": lambda given, _: CompletionConflict(given.found.id),
    "closed": lambda given, verdict: InteractionClosed(given.found.id, verdict.status),
    "late": lambda given, _: CompletionTooLate(given.found.id),
    "type": _refuse_type,
}
