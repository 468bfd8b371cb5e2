"""Admits answers: finds the question, checks the reply against its type, and lets the instance go on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from stepwell import _probes
from stepwell._core.codec import check_size, encode_value
from stepwell._core.faults import Contention, Outage, Refusal
from stepwell._core.interactions import Answer, Answered, Completion
from stepwell._core.ranges import check_key, check_tenant, check_uuid
from stepwell._core.registry import Registry
from stepwell._core.replies import ReplyType, find_type, project
from stepwell._core.tokens import TokenFacts, TokenKeys, key_of
from stepwell._runtime.detours import Detours
from stepwell._runtime.gatherer import Gatherer
from stepwell._runtime.known import Known
from stepwell._runtime.notifier import Notifier
from stepwell._store import interactions
from stepwell._store.database import Database
from stepwell._store.interactions import Found, Given, Verdict
from stepwell._store.retries import retried
from stepwell._store.units import Settled
from stepwell.config import Settings
from stepwell.errors import (
    CompletionConflict,
    CompletionRefused,
    CompletionTooLate,
    InteractionClosed,
    InvalidInput,
    InvalidReply,
    InvalidToken,
    ProjectionFailed,
    UnknownInteraction,
)

PAUSES = (0.002, 0.005, 0.01, 0.02)  # seconds, before an answer waits alone for whoever holds its instance
LARGEST_GROUP = 256  # answers that are looked up, and judged, together


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """One answer whose form is right: what it names, and its reply, as text if that could be said without its type."""

    named: tuple[str | None, str | None, str]
    reply: Any
    text: str | None
    actor: str | None
    facts: TokenFacts | None
    token_key: str | None  # that has signed them
    misfit: InvalidToken | None  # of a token beside the question's name: said once the question is found

    @property
    def shown(self) -> str:
        return self.named[0] or f"with correlation {self.named[1]}"


_Ended: TypeAlias = Completion | CompletionRefused | InvalidInput | Given | Outage
"""What became of an answer; a Given is still to be judged, alone: somebody holds its instance."""


class Completing:
    """The door for answers. Those of one moment are admitted together."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, settings: Settings, keys: TokenKeys,
        known: Known,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._keys = keys
        self._known = known
        self._group = Gatherer(
            self._complete, lambda call: len(call.text or ""), waits_a_turn=True, largest=LARGEST_GROUP, at_once=2
        )
        self._judging = asyncio.Lock()  # by one group at a time: they would wait for each other's instances
        self._last: asyncio.Future[None] | None = None  # tells that the group that came last is judged
        self._lines: dict[int, Gatherer[Given, Completion | CompletionRefused]] = {}  # by instance that is held
        self._in_line = Counter[int]()  # answers that wait in each
        self._detours = Detours[int]()

    async def complete(self, answer: Answer) -> Completion:
        """Admit one answer; a CompletionRefused says why it is not taken, and nothing has changed then."""
        self._database.check_loop()
        call = self._admit(answer)
        ended = await self._group.submit(call)
        for pause in PAUSES:  # mostly other answers hold the instance, or its own worker: together again is cheaper
            if not isinstance(ended, Given):
                break
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            ended = await self._group.submit(call)
        if isinstance(ended, Given):
            ended = await self._wait_in_line(ended)
        if isinstance(ended, Completion):
            return ended
        raise ended

    def settled(self, settled: Settled) -> None:
        """Tell who may go on by it."""
        for queue, count in Counter(settled.queues).items():
            self._notifier.announce_work(queue, count)
        for transport in settled.transports:
            self._notifier.announce_dispatch(transport)
        if settled.next_deadline is not None:
            self._notifier.announce_due()

    def _admit(self, answer: Answer) -> _Call:
        """Check what can be checked before anybody is asked."""
        text = _text(answer.reply)
        if text is not None:
            check_size(text, "reply", self._settings.max_payload)
        facts, misfit = None, None
        try:
            facts = None if answer.token is None else self._verify(answer.token)
        except InvalidToken as error:
            if answer.interaction is None and answer.correlation is None:
                raise
            misfit = error
        return _Call(
            named=self._named(answer, facts),
            reply=answer.reply,
            text=text,
            actor=None if answer.actor is None else check_key("actor", answer.actor),
            facts=facts,
            token_key=key_of(answer.token) if facts is not None and answer.token is not None else None,
            misfit=misfit,
        )

    def _verify(self, token: object) -> TokenFacts:
        if not isinstance(token, str) or not token.strip():
            raise InvalidToken(None, "the token is blank; leave it out, or hand it on as it was issued")
        return self._keys.verify(token)

    def _named(self, answer: Answer, facts: TokenFacts | None) -> tuple[str | None, str | None, str]:
        tenant = answer.tenant if answer.tenant is not None else facts.tenant if facts else self._settings.tenant
        check_tenant(tenant)
        if answer.interaction is None and answer.correlation is None:
            if facts is None:
                raise InvalidInput("interaction", "name the question by its id, its correlation or its token")
            return facts.interaction, None, tenant
        return (
            None if answer.interaction is None else check_uuid("interaction", answer.interaction),
            None if answer.correlation is None else check_uuid("correlation", answer.correlation),
            tenant,
        )

    async def _complete(self, calls: list[_Call]) -> Sequence[_Ended]:
        """Admit answers together; answers in the order of the calls. Those of one group are looked up while those of
        the one before are judged."""
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        try:
            ended, waiting = await self._look_up(calls)
            if before is not None:
                await before  # itself, and nothing around it: so this goes on before all those who are answered then
            async with self._judging:
                for round_ in _rounds(waiting):
                    ended |= await self._judge(round_)
        finally:
            if not own.done():
                own.set_result(None)
        return [ended[place] for place in range(len(calls))]

    async def _look_up(self, calls: list[_Call]) -> tuple[dict[int, _Ended], dict[int, Given]]:
        """What is over with the look at the question, and what is to be judged, by places."""
        ended: dict[int, _Ended] = {}
        found = await self._find(calls)
        waiting: dict[int, Given] = {}
        types: dict[tuple[str, int, str], ReplyType | None] = {}
        for place, call in enumerate(calls):
            if place not in found:
                ended[place] = _unknown(call)
                continue
            if call.misfit is not None:
                ended[place] = call.misfit
                continue
            try:
                waiting[place] = self._given(call, found[place], types)
            except InvalidInput as error:
                ended[place] = error
        return ended, waiting

    async def _find(self, calls: list[_Call]) -> dict[int, Found]:
        """The questions that calls name, by their places. Each is known for one answer: if that is not taken at once,
        the question may be gone, and is looked up."""
        found: dict[int, Found] = {}
        for place, call in enumerate(calls):
            known = self._known.pop(*call.named)
            if known is not None:
                found[place] = known
        unknown = [place for place in range(len(calls)) if place not in found]
        if unknown:
            read = await interactions.find(self._database, [calls[place].named for place in unknown])
            found |= {unknown[n]: one for n, one in read.items()}
        return found

    async def _judge(self, round_: dict[int, Given]) -> dict[int, _Ended]:
        if _probes.hooks:
            await _probes.reach("completing.found", ids=[given.found.id for given in round_.values()])
        ended = await self._take_plain(round_)
        rest = {place: given for place, given in round_.items() if place not in ended}
        try:
            ended |= await self._judge_fully(rest)
        except (Contention, Refusal, Outage) as error:
            if not ended:
                raise
            # The others are taken. Nothing has become of these, and they come again; or nobody knows.
            ended |= {place: Outage(str(error)) for place in rest} if isinstance(error, Outage) else rest
        if _probes.hooks:
            await _probes.reach("completing.admitted", ids=[given.found.id for given in round_.values()])
        return ended

    async def _take_plain(self, round_: dict[int, Given]) -> dict[int, _Ended]:
        """Take in what can go the short way. Who could not, and comes again, or has others behind it, goes the long one
        for a moment."""
        plain = [(place, given) for place, given in round_.items()
                 if given.is_plain and not self._detours.has(given.found.unit_id)]  # fmt: skip
        if not plain:
            return {}
        taken, settled = await retried(lambda: interactions.answer_plain(self._database, [one for _, one in plain]))
        self.settled(settled)
        if len(taken) < len(plain):
            self._detours.add({given.found.unit_id for n, (_, given) in enumerate(plain) if n not in taken})
        else:
            self._detours.drop(given.found.unit_id for _, given in plain)
        return {place: _completion(given) for n, (place, given) in enumerate(plain) if n in taken}

    async def _judge_fully(self, rest: dict[int, Given]) -> dict[int, _Ended]:
        if not rest:
            return {}
        verdicts, settled = await retried(lambda: interactions.admit(self._database, list(rest.values())))
        self.settled(settled)
        return {
            place: given if verdict is None else _answer(given, verdict)
            for (place, given), verdict in zip(rest.items(), verdicts, strict=True)
        }

    async def _wait_in_line(self, given: Given) -> Completion | CompletionRefused:
        """Somebody's transaction holds the instance: wait for it, with the other answers that do, by one connection.

        Very many answers to one instance would hold it by turns, one each, and nobody would ever find it free.
        """
        id_ = given.found.instance_id
        line = self._lines.setdefault(id_, Gatherer(self._judge_patiently, lambda one: len(one.reply)))
        self._in_line[id_] += 1
        try:
            return await line.submit(given)
        finally:
            self._in_line[id_] -= 1
            if not self._in_line[id_]:
                del self._lines[id_], self._in_line[id_]

    async def _judge_patiently(self, line: list[Given]) -> Sequence[Completion | CompletionRefused]:
        """Judge answers to one instance, each question at most once at a time; answers in their order."""
        ended: dict[int, Completion | CompletionRefused] = {}
        for round_ in _rounds(dict(enumerate(line))):
            verdicts, settled = await retried(partial(interactions.admit_patiently, self._database, [*round_.values()]))
            self.settled(settled)
            for (place, given), verdict in zip(round_.items(), verdicts, strict=True):
                ended[place] = UnknownInteraction(given.found.id) if verdict is None else _answer(given, verdict)
        return [ended[place] for place in range(len(line))]

    def _given(self, call: _Call, found: Found, types: dict[tuple[str, int, str], ReplyType | None]) -> Given:
        named = found.machine, found.version, found.reference
        if named not in types:  # those of one moment are mostly of one type
            types[named] = self._type(found)
        kind = types[named]
        projection = None if kind is None else kind.projection
        sent = kind if projection is None else projection.facts
        text, problem = call.text, None
        if text is None:
            if sent is None:
                encode_value(call.reply, "reply")  # says what is wrong with it
            assert sent is not None  # noqa: S101 - or the line above has raised
            text = sent.encode(call.reply)
            check_size(text, "reply", self._settings.max_payload)
        is_checked = sent is not None and (found.request is None or projection is not None)
        if sent is not None and is_checked:
            try:
                sent.decode(text)
            except InvalidInput as error:
                problem = str(error)
        reply, facts = text, None
        if kind is not None and projection is not None and problem is None:
            facts = text
            try:
                reply = self._project(call, found, kind, text)
            except Exception as error:  # noqa: BLE001 - the author's function may raise anything
                problem = f"projector: {type(error).__name__}: {error}"
        token = None if call.facts is None else msgspec.structs.astuple(call.facts)
        return Given(
            found=found, reply=reply, actor=call.actor, token=token, token_key=call.token_key, facts=facts,
            is_checked=is_checked, problem=problem,
        )  # fmt: skip

    def _project(self, call: _Call, found: Found, kind: ReplyType, facts: str) -> str:
        """The reply that a projector makes of what was sent."""
        assert found.request is not None  # noqa: S101 - it is there where a projector is
        assert found.asked_at is not None  # noqa: S101 - as above
        reply = project(kind, found.request, facts, Answered(found.id, call.actor, found.asked_at))
        check_size(reply, "reply", self._settings.max_payload)
        return reply

    def _type(self, found: Found) -> ReplyType | None:
        """The type of a reply, if this process has it; else the database checks by its schema."""
        definition = self._registry.find(found.machine, found.version)
        return None if definition is None else find_type(found.reference, type(definition.owner).__module__)


def _rounds(waiting: dict[int, Given]) -> Iterator[dict[int, Given]]:
    """Answers by their places, in rounds: in each, every question at most once, the first answer first."""
    while waiting:
        first = {given.found.id: place for place, given in reversed(waiting.items())}
        yield {place: waiting.pop(place) for place in sorted(first.values())}


def _unknown(call: _Call) -> UnknownInteraction:
    """Nobody asked that. Its cause is the token, if that does not hold either: a door may have to say no more."""
    error = UnknownInteraction(call.shown)
    error.__cause__ = call.misfit
    return error


def _text(reply: object) -> str | None:
    """The reply as JSON; None if only its type knows how to write it."""
    try:
        return encode_value(reply, "reply")
    except InvalidInput:
        return None


def _completion(given: Given, *, is_duplicate: bool = False) -> Completion:
    found = given.found
    return Completion(found.id, found.instance_id, found.machine, found.step, is_duplicate)


def _answer(given: Given, verdict: Verdict) -> Completion | CompletionRefused:
    if verdict.verdict in ("admitted", "duplicate"):
        return _completion(given, is_duplicate=verdict.verdict == "duplicate")
    return _REFUSALS[verdict.verdict](given, verdict)


def _refuse_token(given: Given, _: Verdict) -> InvalidToken:
    foreign = "the token is of another question, or of another deadline"
    return InvalidToken(given.found.id, "requires its token" if given.token is None else foreign)


def _refuse_retired(given: Given, _: Verdict) -> InvalidToken:
    said = f"the token was signed with key {given.token_key!r}, which is retired; hand out a new one, under another key"
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
