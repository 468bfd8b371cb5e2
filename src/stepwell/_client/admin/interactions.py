"""Reads interactions: the open ones, a single one, and its token."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from stepwell._client.call_timeout import Calls, Timeout
from stepwell._client.completions.interaction_cache import InteractionCache
from stepwell._core.interaction import Interaction, epoch_ms
from stepwell._core.resume_token import TokenFacts, TokenKeys, token_hash
from stepwell._core.serialization.codec import decode_value, encode_value
from stepwell._core.validation import check_key, check_tenant, check_uuid
from stepwell._store import interactions
from stepwell._store.connection.pool import Database
from stepwell.errors import InvalidInput, UnknownInteraction

LARGEST_PAGE = 500


class Page(msgspec.Struct, frozen=True):
    """Some open interactions, and the cursor of the next page; None if this is the last one."""

    items: list[Interaction]
    cursor: str | None


class Interactions:
    """`engine.interactions`: open interactions of a tenant."""

    def __init__(self, database: Database, tenant: str, keys: TokenKeys, cache: InteractionCache, calls: Calls) -> None:
        self._database = database
        self._calls = calls
        self._interaction_cache = cache
        self._tenant = tenant
        self._keys = keys

    async def pending(
        self,
        *,
        tenant: str | None = None,
        assignee: str | None = None,
        group: str | None = None,
        machine: str | None = None,
        step: str | None = None,
        transport: str | None = None,
        overdue: bool | None = None,
        limit: int = 50,
        after: str | None = None,
        timeout: Timeout | None = None,
    ) -> Page:
        """Open interactions that match all given filters, the next deadline first; an empty text is no filter. Up to
        `limit` of them, or fewer if they are large: the cursor says whether there are more.
        """
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput("limit", f"expected a whole number from 1 to {LARGEST_PAGE}, got {limit!r}")
        if overdue is not None and not isinstance(overdue, bool):
            raise InvalidInput("overdue", f"expected True, False or None, got {overdue!r:.100}")
        own = self._of(tenant)
        named = {"assignee": assignee, "group": group, "machine": machine, "step": step, "transport": transport}
        filters = [_check_filter(field, given) for field, given in named.items()]
        cursor = None if after is None else _check_cursor(after)
        reading = self._page(own, [*filters, overdue], limit, cursor)
        return await self._calls.within("interactions.pending", timeout, reading)

    async def _page(self, own: str, filters: list[str | bool | None], limit: int, cursor: str | None) -> Page:
        rows = await interactions.pending(self._database, own, filters, limit + 1, cursor)
        read, number = await self._read(own, [id_ for id_, _ in rows[:limit]])
        return Page(read, _hide(rows[number - 1][1]) if len(rows) > number else None)

    async def get(
        self, interaction_id: str, *, tenant: str | None = None, timeout: Timeout | None = None
    ) -> Interaction:
        """A snapshot of one interaction, open or not."""
        return await self._calls.within("interactions.get", timeout, self._get(interaction_id, tenant))

    async def _get(self, interaction_id: str, tenant: str | None) -> Interaction:
        id_ = check_uuid("interaction", interaction_id)
        read, _ = await self._read(self._of(tenant), [id_])
        if not read:
            raise UnknownInteraction(id_)
        return read[0]

    async def token(
        self, interaction_id: str, *, tenant: str | None = None, timeout: Timeout | None = None
    ) -> str:
        """The signed token of an interaction, for a link in a mail: it permits its holder to complete the interaction.
        """
        return await self._calls.within("interactions.token", timeout, self._token(interaction_id, tenant))

    async def _token(self, interaction_id: str, tenant: str | None) -> str:
        interaction = await self._get(interaction_id, tenant)
        token = self._keys.sign(
            TokenFacts(
                interaction.tenant, interaction.id, interaction.correlation_id, interaction.instance_id,
                interaction.step, epoch_ms(interaction.deadline),
            )
        )  # fmt: skip
        await interactions.add_token_hash(self._database, interaction.id, token_hash(token))
        return token

    async def _read(self, tenant: str, ids: list[str]) -> tuple[list[Interaction], int]:
        read, number = await interactions.read(self._database, tenant, ids)
        self._interaction_cache.note(tenant, (found for seen, found in read if seen.status.is_open))
        return [seen for seen, _ in read], number

    def _of(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else check_tenant(tenant)


def _check_filter(field: str, given: object) -> str | None:
    return None if given is None or (isinstance(given, str) and not given.strip()) else check_key(field, given)


def _hide(cursor: str) -> str:
    """Encode a cursor, so that callers treat it as opaque."""
    return cursor.encode().hex()


def _check_cursor(after: object) -> str:
    try:
        value: Any = decode_value(bytes.fromhex(str(after)).decode())
        deadline, created, id_ = value
        times = [at if at == "infinity" else _in_utc(datetime.fromisoformat(at)) for at in (deadline, created)]
        return encode_value([*times, str(UUID(id_))], "after")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, InvalidInput):
        raise InvalidInput("after", "is not a cursor; use the one of the page before") from None


def _in_utc(at: datetime) -> str:
    """A time in UTC: Postgres refuses some offsets that Python accepts."""
    if at.tzinfo is None:
        raise ValueError("it is naive")
    return at.astimezone(UTC).isoformat()
