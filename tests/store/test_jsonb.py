"""The stored state that Python predicts is what Postgres returns."""

from __future__ import annotations

import asyncpg
import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell._core.serialization.codec import encode_value
from stepwell._core.serialization.jsonb import as_jsonb
from tests.store.conftest import in_own_loop

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=5)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.lists(st.dictionaries(TEXTS, VALUES, max_size=5), min_size=1, max_size=20))
def test_as_jsonb_predicts_the_state_that_postgres_reads_back(url: str, values: list[dict[str, object]]) -> None:
    texts = [encode_value(value, "state") for value in values]

    async def read_back() -> list[str]:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch("select t::jsonb::text as text from unnest($1::text[]) t", texts)
        await connection.close()
        return [row["text"] for row in rows]

    kept = [repr(msgspec.json.decode(text)) for text in in_own_loop(read_back())]
    assert [repr(msgspec.json.decode(as_jsonb(text, is_mapping=True))) for text in texts] == kept
