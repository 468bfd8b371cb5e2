"""Finds the interactions that completions name, and checks the replies against their types."""

from __future__ import annotations

import asyncio

import msgspec

from stepwell._client.completions.call import Call
from stepwell._client.completions.interaction_cache import InteractionCache
from stepwell._client.completions.offload import LARGE, LargeTextThread
from stepwell._client.completions.result import Result
from stepwell._core.interaction import Answered
from stepwell._core.registry import Registry
from stepwell._core.serialization.bounds import check_bounds
from stepwell._core.serialization.codec import encode_value
from stepwell._core.serialization.reply_type import ReplyType, find_type, project
from stepwell._store import interactions
from stepwell._store.connection.pool import Database
from stepwell._store.interactions import Found
from stepwell._store.operations.complete import Given
from stepwell.errors import InvalidInput, UnknownInteraction


class Lookup:
    """The lookups of one client."""

    def __init__(
        self, database: Database, registry: Registry, cache: InteractionCache, large_texts: LargeTextThread,
        max_payload: int,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._cache = cache
        self._large_texts = large_texts
        self._max_payload = max_payload

    async def look_up(self, calls: list[Call]) -> tuple[dict[int, Result], dict[int, Given]]:
        """Look up a group: the results that are known by the lookup alone, and the completions that remain, by their
        positions."""
        results: dict[int, Result] = {}
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
                    size, _given, call, found[position], kind, self._max_payload
                )
            except InvalidInput as error:
                results[position] = error
        return results, waiting

    async def _find(self, calls: list[Call]) -> dict[int, Found]:
        """The interactions that calls name, by their positions. A cached one serves one completion: if that is not
        accepted at once, the interaction may have ended, and is looked up."""
        found: dict[int, Found] = {}
        for position, call in enumerate(calls):
            cached = self._cache.pop(*call.named)
            if cached is not None:
                found[position] = cached
        unknown = [position for position in range(len(calls)) if position not in found]
        if unknown:
            read = await interactions.find(self._database, [calls[position].named for position in unknown])
            found |= {unknown[n]: one for n, one in read.items()}
        return found

    def _type(self, found: Found, types: dict[tuple[str, int, str], ReplyType | None]) -> ReplyType | None:
        """The type of a reply, if this process has it; else the database checks by its JSON Schema. `types` caches:
        the completions of one group mostly share a type."""
        named = found.machine, found.version, found.reference
        if named not in types:
            definition = self._registry.find(found.machine, found.version)
            home = None if definition is None else type(definition.owner.object).__module__
            types[named] = None if home is None else find_type(found.reference, home)
        return types[named]


def _unknown(call: Call) -> UnknownInteraction:
    """No such interaction. The cause is the token's error, if there is one: an API may report only that."""
    error = UnknownInteraction(call.shown)
    error.__cause__ = call.token_error
    return error


def _size_read(call: Call, found: Found, kind: ReplyType | None) -> int:
    """How many characters are decoded to check a reply."""
    if kind is None or (kind.decoder is None and kind.projection is None):
        return 0
    return max(len(call.text or ""), len(found.request or ""))


def _given(call: Call, found: Found, kind: ReplyType | None, max_payload: int) -> Given:
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


def _project(call: Call, found: Found, kind: ReplyType, facts: object) -> str:
    """The reply that a projector makes from the facts that were sent."""
    assert found.request is not None  # noqa: S101 - it is there where a projector is
    assert found.asked_at is not None  # noqa: S101 - as above
    return project(kind, found.request, facts, Answered(found.id, call.actor, found.asked_at))
