"""Signed tokens: who has one may answer its question, and no other; without one, a guarded question is not answered."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from stepwell import InvalidToken, SettingError, UnknownInteraction
from stepwell._core.tokens import TokenFacts, TokenKeys
from stepwell.testing import Harness
from stepwell.transports import Dispatch, SendFailed
from tests.asks.askers import Recorder, each_asker
from tests.asks.looks import OLD_SECRET, SECRET, PythonDoor, Refused, SqlDoor, asked, pending, questions, snapshot
from tests.asks.machines import Expense
from tests.conftest import MakeHarness

YES: dict[str, Any] = {"approved": True}
GUARDED = {"token": True, "seconds": 600}


async def refused(h: Harness, door: PythonDoor | SqlDoor, reason: str, **answer: Any) -> str:
    before = await snapshot(h)
    with pytest.raises(Refused) as caught:
        await door.complete(**{"reply": YES, **answer})
    assert caught.value.reason == reason, caught.value.said
    assert await snapshot(h) == before
    return caught.value.said


def changed(token: str, place: int, value: object) -> str:
    """The token with another fact in it, under the old signature."""
    scheme, key_id, payload, signature = token.split(".")
    facts = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    facts[place] = value
    made = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode().rstrip("=")
    return f"{scheme}.{key_id}.{made}.{signature}"


async def test_a_token_alone_is_enough(h: Harness, door: PythonDoor) -> None:
    """Scenarios 16, 64; Gap 11: it names tenant and question; the question is not answered without it."""
    expense, question = await asked(h, Expense, GUARDED, tenant="acme")
    token = await h.engine.interactions.token(question.id, tenant="acme")
    await refused(h, door, "token", interaction=question.id, tenant="acme")
    await refused(h, door, "token", correlation=question.correlation_id, tenant="acme")

    first = await door.complete(token=token, reply=YES, actor="bob")
    again = await door.complete(token=token, reply=YES)
    await refused(h, door, "conflict", token=token, reply={"approved": False})

    assert (first, again) == (False, True)
    await h.drain()
    await h.assert_done(expense)


async def test_a_token_may_come_with_its_question(h: Harness, door: PythonDoor) -> None:
    """Scenario 61: beside the right id or correlation; beside another's it is foreign."""
    _, one = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(one.id)
    await h.engine.interactions.token(other.id)

    await refused(h, door, "token", interaction=other.id, token=token)
    await refused(h, door, "token", correlation=other.correlation_id, token=token)

    assert not await door.complete(interaction=one.id, token=token, reply=YES)


async def test_a_token_that_is_not_as_issued_is_refused(h: Harness, door: PythonDoor) -> None:
    """Scenario 61: tampered, malformed, blank, of another tenant: refused with any question named beside it."""
    _, question = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(question.id)
    _, other = await asked(h, Expense, GUARDED)
    scheme, key_id, payload, signature = token.split(".")
    deep = base64.urlsafe_b64encode(b"[" * 60_000).decode()
    wrong = [
        f"{scheme}.{key_id}.{deep}.{signature}", token[:-2], token + "A", f"{scheme}.{key_id}.{payload}.",
        f"{scheme}.{key_id}.{payload}", "x", " ", "a.b.c.d", f"{scheme}.other.{payload}.{signature}",
        changed(token, 1, other.id), changed(token, 5, None), changed(token, 0, "acme"), token.replace("sw1.", "sw2."),
    ]  # fmt: skip

    for made in wrong:
        await refused(h, door, "token", interaction=question.id, token=made)
    for made in wrong[:10]:
        await refused(h, door, "token", token=made)
    await refused(h, door, "unknown", token=token, tenant="acme")

    assert not await door.complete(token=token, reply=YES)


@pytest.mark.parametrize("field", TokenFacts.__struct_fields__)
async def test_a_token_that_is_signed_rightly_for_something_else_is_refused(
    h: Harness, door: PythonDoor, field: str
) -> None:
    """Scenario 61: of another tenant, interaction, correlation, execution, step or deadline, and right in all else."""
    _, question = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    token, others = [await h.engine.interactions.token(q.id) for q in (question, other)]
    keys = TokenKeys.read({"new": SECRET})
    elsewhere = {"tenant": "acme", "step": "decided", "deadline": None}
    value = elsewhere[field] if field in elsewhere else getattr(keys.verify(others), field)
    made = keys.sign(msgspec.structs.replace(keys.verify(token), **{field: value}))

    await refused(h, door, "token", interaction=question.id, token=made, tenant="")
    await refused(h, door, "unknown" if field == "tenant" else "token", token=made)

    assert not await door.complete(interaction=question.id, token=token, tenant="", reply=YES)


async def test_a_token_of_another_engine_is_refused(h: Harness) -> None:
    """Scenario 61: signed with another secret under the same id; or with a key that is gone from the ring."""
    _, question = await asked(h, Expense, GUARDED)
    async with h.another_engine(token_keys={"new": OLD_SECRET}) as forger:
        forged = await forger.interactions.token(question.id)
    async with h.another_engine(token_keys={"gone": OLD_SECRET}) as retired:
        gone = await retired.interactions.token(question.id)

    assert "signature" in await refused(h, PythonDoor(h), "token", token=forged)
    assert "'gone'" in await refused(h, PythonDoor(h), "token", token=gone)


async def test_an_old_key_verifies_while_it_is_in_the_ring(h: Harness) -> None:
    """Section 8 (static secret), in the better way: the first key signs, all of them verify."""
    _, question = await asked(h, Expense, GUARDED)
    async with h.another_engine(token_keys={"old": OLD_SECRET}) as before:
        token = await before.interactions.token(question.id)
    async with h.another_engine(token_keys=f"new:{SECRET},old:{OLD_SECRET}") as rotated:
        fresh = await rotated.interactions.token(question.id)

        completion = await rotated.complete(token=token, reply=YES)

    assert fresh.startswith("sw1.new.")
    assert token.startswith("sw1.old.")
    assert not completion.is_duplicate


async def handed_out(h: Harness, question: str, *keys: str) -> list[str]:
    """Tokens of a question, one after the other, each by an engine that has only that key."""
    tokens = []
    for key in keys:
        async with h.another_engine(token_keys={key: OLD_SECRET}) as engine:
            tokens.append(await engine.interactions.token(question))
    return tokens


async def test_sql_takes_the_token_under_an_old_key_after_a_new_one_was_handed_out(h: Harness) -> None:
    """Section 8: the database has no secret and no ring; it keeps the hashes of tokens that were handed out before."""
    _, question = await asked(h, Expense, GUARDED)
    [old, fresh] = await handed_out(h, question.id, "old", "fresh")

    assert not await SqlDoor(h).complete(token=old, reply=YES)
    assert await SqlDoor(h).complete(interaction=question.id, token=fresh, reply=YES)


async def test_sql_takes_the_tokens_of_a_questions_last_five_keys(h: Harness) -> None:
    """As the guide says; whoever goes back to a key hands out the same token, which is kept once."""
    _, question = await asked(h, Expense, GUARDED)
    [first, *others] = await handed_out(h, question.id, "k0", "k1", "k2", "k3", "k4", "k5", "k4", "k5")

    await refused(h, SqlDoor(h), "token", token=first)

    assert [await SqlDoor(h).complete(token=token, reply=YES) for token in others] == [False] + [True] * 6


async def test_a_question_that_is_sent_again_under_a_new_key_keeps_the_token_it_was_sent_with(
    make_harness: MakeHarness,
) -> None:
    """Section 8: the first sending seemed to fail, and yet arrived."""

    class Unheard(Recorder):
        async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
            await super().send(dispatch)
            raise SendFailed("no answer")

    there = Unheard()
    h = await make_harness([Expense], transports=[there], token_keys={"old": OLD_SECRET})
    await h.engine.start(Expense, {**GUARDED, "transport": "recorder"})
    await h.drain()
    async with h.another_engine(token_keys={"new": SECRET}) as rotated:
        h.engine = rotated
        await h.advance(timedelta(seconds=300))
        await h.drain()

    tokens = dict.fromkeys(sent.token for sent in there.sent)

    assert [token.split(".")[1] for token in tokens if token] == ["old", "new"]
    assert [await SqlDoor(h).complete(token=token, reply=YES) for token in tokens] == [False, True]


async def test_a_retired_key_signs_for_nobody_until_it_is_reinstated(h: Harness, door: PythonDoor) -> None:
    """Section 8: a key that leaked is withdrawn at all doors at once, though it is in the ring; others stay good."""
    _, question = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    [gone] = await handed_out(h, other.id, "gone")
    token = await h.engine.interactions.token(question.id)
    await h.sql("select stepwell.retire_token_key('gone')")
    assert not await door.complete(token=token, reply=YES)
    await h.sql("select stepwell.retire_token_key('new')")

    said = [
        await refused(h, door, "token", token=token),  # also of an answer that is repeated
        await refused(h, door, "token", interaction=question.id, token=token),
        await refused(h, SqlDoor(h), "token", token=gone),
    ]
    await h.sql("select stepwell.reinstate_token_key('new')")

    keys = [re.search(r"signed with key '(\w+)', which is retired; hand out a new one", words) for words in said]
    assert [key and key[1] for key in keys] == ["new", "new", "gone"]
    assert await door.complete(token=token, reply=YES)


async def test_a_key_is_retired_once_and_only_by_its_id(h: Harness) -> None:
    calls = ["retire", "retire", "reinstate", "reinstate"]
    for wrong in ("", "a b", "k" * 33, "new\n", "sw1.new", None):
        for call in ("retire", "reinstate"):
            with pytest.raises(asyncpg.PostgresError, match="key_id: is not of 1 to 32 letters") as caught:
                await h.sql(f"select stepwell.{call}_token_key($1)", wrong)
            assert (caught.value.sqlstate, caught.value.column_name) == ("SW001", "key_id")

    changed = [(await h.sql(f"select stepwell.{call}_token_key('Old_1-a') as it"))[0]["it"] for call in calls]

    assert changed == [True, False, True, False]


async def test_a_token_ends_with_its_question(h: Harness, door: PythonDoor) -> None:
    """Scenarios 61, 63: expired it is late; of a question that has ended it is closed, however good it is."""
    _, question = await asked(h, Expense, GUARDED)
    cancelled, other = await asked(h, Expense, GUARDED)
    token, closed = [await h.engine.interactions.token(q.id) for q in (question, other)]
    await h.engine.cancel(cancelled.id)
    await h.advance(timedelta(seconds=601))

    await refused(h, door, "late", token=token)
    await refused(h, door, "closed", token=closed)


async def test_a_token_of_a_question_that_has_timed_out_answers_nothing(h: Harness, door: PythonDoor) -> None:
    """Scenario 63: late until the timeout is noted, closed ever after; by the token alone, and beside the id."""
    expense, question = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(question.id)
    await h.advance(timedelta(seconds=601))
    await h.drain()

    said = [await refused(h, door, "closed", **named) for named in (
        {"token": token}, {"interaction": question.id, "token": token})]  # fmt: skip

    assert all("timed out" in words for words in said)
    ended = await h.assert_done(expense)
    assert ended.result["status"] == "timed_out"


async def test_a_question_asked_again_has_a_token_of_its_own(h: Harness, door: PythonDoor) -> None:
    """Gap 13 with 61: a retry gives the question another deadline; the token of the first time is foreign then."""
    expense, question = await asked(h, Expense, {**GUARDED, "on_timeout": "fail"})
    [earlier] = await handed_out(h, question.id, "old")
    before = await h.engine.interactions.token(question.id)
    await h.advance(timedelta(seconds=601))
    await h.drain()
    await h.engine.retry(expense.id)

    await refused(h, door, "token", token=before)
    fresh = await h.engine.interactions.token(question.id)
    for token in (earlier, before):
        await refused(h, door, "token", token=token)

    await door.complete(token=fresh, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_a_question_without_a_deadline_that_is_asked_again_has_the_token_it_had(
    h: Harness, door: PythonDoor
) -> None:
    """Gap 13 with 61: nothing that the token says has changed."""
    expense, question = await asked(h, Expense, {"token": True})
    token = await h.engine.interactions.token(question.id)
    await h.engine.cancel(expense.id)
    await h.engine.retry(expense.id)

    assert not await door.complete(token=token, reply=YES)


@pytest.mark.parametrize("door_of", [PythonDoor, SqlDoor])
async def test_an_item_that_is_let_out_has_a_token_of_its_own(make_harness: MakeHarness, door_of: Any) -> None:
    """Scenario 61 of items: one that waits for its window has no deadline yet, and its token says so."""
    machine = each_asker(lambda: range(2), reply=int, token=True, window=1, timeout=timedelta(seconds=600))
    h = await make_harness([machine], token_keys={"new": SECRET})
    each = await h.engine.start(machine)
    await h.drain()
    first, second = [str(row["id"]) for row in await questions(h, each.id)]
    early = await h.engine.interactions.token(second)
    await h.engine.complete(token=await h.engine.interactions.token(first), reply=0)

    await refused(h, door_of(h), "token", token=early, reply=1)

    assert not await door_of(h).complete(token=await h.engine.interactions.token(second), reply=1)


async def test_the_token_goes_out_with_the_question(make_harness: MakeHarness) -> None:
    """Scenario 16: what was sent is enough to answer, in Python and in SQL, which knows only its hash."""
    recorder = Recorder()
    h = await make_harness([Expense], transports=[recorder], token_keys={"new": SECRET})
    state = {**GUARDED, "transport": "recorder"}
    handles = [await h.engine.start(Expense, state), await h.engine.start(Expense, state)]
    open_one = await h.engine.start(Expense, {"transport": "recorder"})

    await h.drain()

    tokens = {d.instance_id: d.token for d in recorder.sent}
    assert tokens[open_one.id] is None
    assert recorder.sent[0].envelope()["resumeToken"] == tokens[recorder.sent[0].instance_id]
    await PythonDoor(h).complete(token=tokens[handles[0].id], reply=YES)
    await SqlDoor(h).complete(token=tokens[handles[1].id], reply=YES)
    await h.drain()
    for handle in handles:
        await h.assert_done(handle)
    rows = await h.sql("select from stepwell.interactions q where q::text like '%' || $1 || '%'", SECRET)
    assert rows == []


async def test_each_item_has_a_token_of_its_own(make_harness: MakeHarness) -> None:
    """Scenario 61 of items: the token of one is foreign to its sibling."""
    machine = each_asker(lambda: range(2), reply=int, token=True)
    h = await make_harness([machine], token_keys={"new": SECRET})
    each = await h.engine.start(machine)
    await h.drain()
    first, second = await pending(h)
    token = await h.engine.interactions.token(first.id)

    for door in (PythonDoor(h), SqlDoor(h)):
        await refused(h, door, "token", interaction=second.id, token=token, reply=1)
        await refused(h, door, "token", interaction=second.id, reply=1)

    await h.engine.complete(token=token, reply=0)
    await SqlDoor(h).complete(token=await h.engine.interactions.token(second.id), reply=1)
    await h.drain()
    await h.assert_done(each, [[0, "completed", 0], [1, "completed", 1]])


async def test_without_keys_nothing_is_signed(make_harness: MakeHarness) -> None:
    """Scenario 62: the ask is refused to `handle`, nothing is sent; no token is issued, and none is verified."""
    recorder = Recorder()
    h = await make_harness([Expense], transports=[recorder])
    guarded = await h.engine.start(Expense, {**GUARDED, "transport": "recorder"})
    _, question = await asked(h, Expense)
    signed = "sw1.new.W10.abc"

    await h.assert_failed(guarded, "token: this engine has no keys to sign it with; pass them to Engine(token_keys=")

    assert recorder.sent == await questions(h, guarded.id) == []
    with pytest.raises(SettingError, match="token_keys"):
        await h.engine.interactions.token(question.id)
    with pytest.raises(InvalidToken):
        await h.engine.complete(token=signed, reply=YES)


async def test_a_token_is_issued_for_ones_own_questions(h: Harness) -> None:
    """Scenario 59: another tenant's question is unknown; asked for twice, the token is the same."""
    _, question = await asked(h, Expense, GUARDED, tenant="acme")

    with pytest.raises(UnknownInteraction):
        await h.engine.interactions.token(question.id)
    one = await h.engine.interactions.token(question.id, tenant="acme")

    assert await h.engine.interactions.token(question.id, tenant="acme") == one
