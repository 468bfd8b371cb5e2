"""Wide states of new instances, copied: an INSERT makes room in the file page by page, a COPY for many at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct

from stepwell._core.entries import NewInstance
from stepwell._store.database import Session

WIDE = 256  # characters of a state, from which on a second round trip is worth it

# The binary form of COPY: a row is its number of fields, and before each field its length.
_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_ID = Struct(">hiq").pack
_LENGTH = Struct(">i").pack
_FIELDS, _ID_LENGTH = 2, 8
_JSONB = b"\x01"  # the version of its form, which the text follows


def are_wide(entries: Sequence[NewInstance]) -> bool:
    """Whether the states of these are better copied. A single one is not."""
    return len(entries) > 1 and sum(len(entry.state) for entry in entries) >= WIDE * len(entries)


def encoded(entries: Iterable[NewInstance]) -> list[bytes]:
    """Their states as they are copied: all that can be done before the ids are known."""
    texts = [entry.state.encode() for entry in entries]
    return [_LENGTH(len(text) + 1) + _JSONB + text for text in texts]


async def copy(session: Session, ids: Iterable[int], states: Iterable[bytes]) -> None:
    """Store the states of instances that were inserted in this transaction without them."""
    parts = [_HEAD]
    for id_, state in zip(ids, states, strict=True):
        parts += (_ID(_FIELDS, _ID_LENGTH, id_), state)
    parts.append(_END)
    await session.copy("instance_data", ("id", "state"), b"".join(parts))
