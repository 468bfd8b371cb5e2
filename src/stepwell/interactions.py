"""Looking at questions to the world: what is open, one of them, and its token."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from stepwell._core.codec import decode_value, encode_value
from stepwell._core.interactions import Interaction, epoch_ms
from stepwell._core.ranges import check_key, check_tenant, check_uuid
from stepwell._core.tokens import TokenFacts, TokenKeys, seal_of
from stepwell._runtime.known import Known
from stepwell._store import interactions
from stepwell._store.database import Database
from stepwell.errors import InvalidInput, UnknownInteraction

LARGEST_PAGE = 500


class Page(msgspec.Struct, frozen=True):
    """Some open questions, and where the next page begins; None behind the last one."""

    items: list[Interaction]
    cursor: str | None


class Interactions:
    """`engine.interactions`: open questions of a tenant."""

    def __init__(self, database: Database, tenant: str, keys: TokenKeys, known: Known) -> None:
        self._database = database
        self._known = known
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
    ) -> Page:
        """Open questions, the next deadline first; filters are all to hold, an empty text is none."""
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= LARGEST_PAGE:
            raise InvalidInput("limit", f"expected a whole number from 1 to {LARGEST_PAGE}, got {limit!r}")
        if overdue is not None and not isinstance(overdue, bool):
            raise InvalidInput("overdue", f"expected True, False or None, got {overdue!r:.100}")
        own = self._of(tenant)
        named = {"assignee": assignee, "group": group, "machine": machine, "step": step, "transport": transport}
        filters = [_check_filter(field, given) for field, given in named.items()]
        cursor = None if after is None else _check_cursor(after)
        rows = await interactions.pending(self._database, own, [*filters, overdue], limit + 1, cursor)
        read = await self._read(own, [id_ for id_, _ in rows[:limit]])
        return Page(read, _hide(rows[limit - 1][1]) if len(rows) > limit else None)

    async def get(self, interaction_id: str, *, tenant: str | None = None) -> Interaction:
        """A snapshot of one question, open or not."""
        id_ = check_uuid("interaction", interaction_id)
        read = await self._read(self._of(tenant), [id_])
        if not read:
            raise UnknownInteraction(id_)
        return read[0]

    async def token(self, interaction_id: str, *, tenant: str | None = None) -> str:
        """The signed token of a question, for a mail with a link: who has it may answer this question."""
        asked = await self.get(interaction_id, tenant=tenant)
        token = self._keys.sign(
            TokenFacts(
                asked.tenant, asked.id, asked.correlation_id, asked.instance_id, asked.step, epoch_ms(asked.deadline)
            )
        )
        await interactions.seal(self._database, asked.id, seal_of(token))
        return token

    async def _read(self, tenant: str, ids: list[str]) -> list[Interaction]:
        read = await interactions.read(self._database, tenant, ids)
        self._known.note(tenant, (found for seen, found in read if seen.status.is_open))
        return [seen for seen, _ in read]

    def _of(self, tenant: str | None) -> str:
        return self._tenant if tenant is None else check_tenant(tenant)


def _check_filter(field: str, given: object) -> str | None:
    return None if given is None or (isinstance(given, str) and not given.strip()) else check_key(field, given)


def _hide(cursor: str) -> str:
    """A cursor is nothing to build by hand."""
    return cursor.encode().hex()


def _check_cursor(after: object) -> str:
    try:
        value: Any = decode_value(bytes.fromhex(str(after)).decode())
        deadline, created, id_ = value
        times = [at if at == "infinity" else _in_utc(datetime.fromisoformat(at)) for at in (deadline, created)]
        return encode_value([*times, str(UUID(id_))], "after")
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, InvalidInput):
        raise InvalidInput("after", "is no cursor; use the one of the page before") from None


def _in_utc(at: datetime) -> str:
    """A time as Postgres reads it: of the offsets that Python knows it refuses some."""
    if at.tzinfo is None:
        raise ValueError("it is naive")
    return at.astimezone(UTC).isoformat()
