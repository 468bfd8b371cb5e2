"""Signed tokens: a token completes its interaction, and no other; a guarded interaction is completed only with one."""

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
from stepwell._core.resume_token import TokenFacts, TokenKeys
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness
from stepwell.transports import Dispatch, SendFailed
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder, asker, each_asker
from tests.features.interactions.looks import (
    OLD_SECRET,
    REASONS,
    SECRET,
    PythonCompleter,
    Refused,
    SqlCompleter,
    asked,
    guesses,
    interaction_rows,
    pending,
    snapshot,
)
from tests.features.interactions.machines import Expense

YES: dict[str, Any] = {"approved": True}
GUARDED = {"token": True, "seconds": 600}


async def refused(h: Harness, completer: PythonCompleter | SqlCompleter, reason: str, **given: Any) -> str:
    before = await snapshot(h)
    with pytest.raises(Refused) as caught:
        await completer.complete(**{"reply": YES, **given})
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


async def test_a_token_alone_identifies_its_interaction(h: Harness, completer: PythonCompleter) -> None:
    """Scenarios 16, 64; Gap 11: it names tenant and interaction; the interaction is not completed without it."""
    expense, interaction = await asked(h, Expense, GUARDED, tenant="acme")
    token = await h.engine.interactions.token(interaction.id, tenant="acme")
    await refused(h, completer, "token", interaction=interaction.id, tenant="acme")
    await refused(h, completer, "token", correlation=interaction.correlation_id, tenant="acme")

    first = await completer.complete(token=token, reply=YES, actor="bob")
    again = await completer.complete(token=token, reply=YES)
    await refused(h, completer, "conflict", token=token, reply={"approved": False})

    assert (first, again) == (False, True)
    await h.drain()
    await h.assert_done(expense)


UNSECRET = """
select stepwell._correlation('', q.tenant, q.instance_id, u.visit, q.item, q.idempotency_key)::text as guess
from stepwell.interactions q
join stepwell.await_units u on u.id = q.unit_id
where q.id = $1
"""


@pytest.mark.parametrize("tenant", ["", "acme"])
@pytest.mark.parametrize("idempotency", [(), ("amount",)])
@pytest.mark.parametrize("completer_of", [PythonCompleter, SqlCompleter])
async def test_a_correlation_cannot_be_guessed(
    make_harness: MakeHarness, completer_of: Any, idempotency: tuple[str, ...], tenant: str
) -> None:
    """It is made with a secret of the database: an instance's id and visit are not enough, nor is its key."""
    machine = asker(request={"amount": 7}, idempotency=idempotency)
    h = await make_harness([machine])
    _, interaction = await asked(h, machine, tenant=tenant)
    [row] = await h.sql(UNSECRET, interaction.id)

    for guess in guesses(interaction):
        await refused(h, completer_of(h), "unknown", correlation=guess, tenant=tenant)

    assert row["guess"] in guesses(interaction)  # all that it takes, but for the secret
    assert not await completer_of(h).complete(correlation=interaction.correlation_id, tenant=tenant, reply=YES)


async def test_a_token_may_come_with_its_interaction(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 61: beside the right id or correlation; beside another's it is foreign."""
    _, one = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(one.id)
    await h.engine.interactions.token(other.id)

    await refused(h, completer, "token", interaction=other.id, token=token)
    await refused(h, completer, "token", correlation=other.correlation_id, token=token)

    assert not await completer.complete(interaction=one.id, token=token, reply=YES)


async def test_a_token_that_was_changed_is_refused(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 61: tampered, malformed, blank, of another tenant: refused, whichever interaction is named with it."""
    _, interaction = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(interaction.id)
    _, other = await asked(h, Expense, GUARDED)
    scheme, key_id, payload, signature = token.split(".")
    deep = base64.urlsafe_b64encode(b"[" * 60_000).decode()
    wrong = [
        f"{scheme}.{key_id}.{deep}.{signature}", token[:-2], token + "A", f"{scheme}.{key_id}.{payload}.",
        f"{scheme}.{key_id}.{payload}", "x", " ", "a.b.c.d", f"{scheme}.other.{payload}.{signature}",
        changed(token, 1, other.id), changed(token, 5, None), changed(token, 0, "acme"), token.replace("sw1.", "sw2."),
    ]  # fmt: skip

    for made in wrong:
        await refused(h, completer, "token", interaction=interaction.id, token=made)
    for made in wrong[:10]:
        await refused(h, completer, "token", token=made)
    await refused(h, completer, "unknown", token=token, tenant="acme")

    assert not await completer.complete(token=token, reply=YES)


@pytest.mark.parametrize("field", TokenFacts.__struct_fields__)
async def test_a_token_with_a_valid_signature_for_another_purpose_is_refused(
    h: Harness, completer: PythonCompleter, field: str
) -> None:
    """Scenario 61: of another tenant, interaction, correlation, execution, step or deadline, and right in all else."""
    _, interaction = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    token, others = [await h.engine.interactions.token(q.id) for q in (interaction, other)]
    keys = TokenKeys.read({"new": SECRET})
    elsewhere = {"tenant": "acme", "step": "decided", "deadline": None}
    value = elsewhere[field] if field in elsewhere else getattr(keys.verify(others), field)
    made = keys.sign(msgspec.structs.replace(keys.verify(token), **{field: value}))

    await refused(h, completer, "token", interaction=interaction.id, token=made, tenant="")
    await refused(h, completer, "unknown" if field == "tenant" else "token", token=made)

    assert not await completer.complete(interaction=interaction.id, token=token, tenant="", reply=YES)


UNREADABLE = """
create or replace function stepwell._reply_problem(schema jsonb, reply jsonb) returns text language plpgsql as
$$ begin raise 'the reply was checked'; end $$;
create or replace function stepwell._payload_problem(field text, sent jsonb, largest bigint) returns text[]
language plpgsql as $$ begin raise 'the reply was measured'; end $$;
"""


async def refused_unread(h: Harness, reply: str, **given: Any) -> str:
    """Why SQL refuses a completion, in a transaction where reading its reply raises."""
    connection = await asyncpg.connect(h.url)
    await connection.execute(f"begin; {UNREADABLE}")
    named = ", ".join(f"{name} => ${place}" for place, name in enumerate(given, 2))
    try:
        await connection.fetch(f"select stepwell.complete($1, {named})", reply, *given.values())
    except asyncpg.PostgresError as error:
        return REASONS.get(str(error.sqlstate), str(error))
    finally:
        await connection.execute("rollback")
        await connection.close()
    return "taken"


UNFIT = {
    "of another type": '{"approved": [1]}', "too large": json.dumps("x" * 2_000_000), "of many digits": "[1e131071]",
}  # fmt: skip


@pytest.mark.parametrize("how", UNFIT)
async def test_sql_checks_no_reply_beside_a_token_that_is_refused(h: Harness, how: str) -> None:
    """H3: a caller without a token causes no check in the server; nor does a completion of an ended interaction."""
    _, interaction = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    token, others = [await h.engine.interactions.token(q.id) for q in (interaction, other)]
    [gone] = await handed_out(h, interaction.id, "gone")
    await h.sql("select stepwell.retire_token_key('gone')")
    wrong: list[dict[str, Any]] = [
        {"interaction": interaction.id}, {"correlation": interaction.correlation_id},
        {"interaction": interaction.id, "token": others}, {"interaction": interaction.id, "token": "x"},
        {"token": changed(token, 5, None)}, {"token": "x"}, {"token": gone}, {"token": f"{token}A"},
    ]  # fmt: skip

    before = [await refused_unread(h, UNFIT[how], **given) for given in wrong]
    looked = await refused_unread(h, UNFIT[how], token=token)
    await h.advance(timedelta(seconds=601))
    after = await refused_unread(h, UNFIT[how], token=token)
    await h.drain()
    closed = await refused_unread(h, UNFIT[how], token=token)

    assert before == ["token"] * len(wrong)
    assert looked == "the reply was measured"
    assert (after, closed) == ("late", "closed")


@pytest.mark.parametrize("reply", ["5", "[1, 2, 3]"])
async def test_the_engine_checks_no_reply_beside_a_token_that_is_refused(h: Harness, reply: str) -> None:
    """H3: if the process does not know the type, the statement that judges a completion checks its reply."""
    _, interaction = await asked(h, Expense, GUARDED)
    given = {"position": 0, "id": interaction.id, "reply": json.loads(reply), "is_checked": False}

    connection = await asyncpg.connect(h.url)
    await connection.execute(f"begin; {UNREADABLE}")
    [row] = await connection.fetch(statement("interactions/complete"), json.dumps([given]))
    await connection.execute("rollback")
    await connection.close()

    assert row["verdict"] == "token"


async def test_a_token_of_another_engine_is_refused(h: Harness) -> None:
    """Scenario 61: signed with another secret under the same id; or with a key that is no longer in the ring."""
    _, interaction = await asked(h, Expense, GUARDED)
    async with h.another_engine(token_keys={"new": OLD_SECRET}) as forger:
        forged = await forger.interactions.token(interaction.id)
    async with h.another_engine(token_keys={"gone": OLD_SECRET}) as retired:
        gone = await retired.interactions.token(interaction.id)

    assert "signature" in await refused(h, PythonCompleter(h), "token", token=forged)
    assert "'gone'" in await refused(h, PythonCompleter(h), "token", token=gone)


async def test_an_old_key_verifies_while_it_is_in_the_ring(h: Harness) -> None:
    """Section 8 (static secret), improved: the first key signs, all of them verify."""
    _, interaction = await asked(h, Expense, GUARDED)
    async with h.another_engine(token_keys={"old": OLD_SECRET}) as before:
        token = await before.interactions.token(interaction.id)
    async with h.another_engine(token_keys=f"new:{SECRET},old:{OLD_SECRET}") as rotated:
        fresh = await rotated.interactions.token(interaction.id)

        completion = await rotated.complete(token=token, reply=YES)

    assert fresh.startswith("sw1.new.")
    assert token.startswith("sw1.old.")
    assert not completion.is_duplicate


async def handed_out(h: Harness, interaction: str, *keys: str) -> list[str]:
    """Tokens of an interaction, one after the other, each by an engine that has only that key."""
    tokens = []
    for key in keys:
        async with h.another_engine(token_keys={key: OLD_SECRET}) as engine:
            tokens.append(await engine.interactions.token(interaction))
    return tokens


async def test_sql_accepts_a_token_of_an_old_key_after_a_new_one_was_issued(h: Harness) -> None:
    """Section 8: the database has no secret and no ring; it keeps the hashes of tokens that were issued before."""
    _, interaction = await asked(h, Expense, GUARDED)
    [old, fresh] = await handed_out(h, interaction.id, "old", "fresh")

    assert not await SqlCompleter(h).complete(token=old, reply=YES)
    assert await SqlCompleter(h).complete(interaction=interaction.id, token=fresh, reply=YES)


async def test_sql_accepts_the_tokens_of_an_interactions_last_five_keys(h: Harness) -> None:
    """As the guide says; an engine that returns to a key issues the same token, which is kept once."""
    _, interaction = await asked(h, Expense, GUARDED)
    [first, *others] = await handed_out(h, interaction.id, "k0", "k1", "k2", "k3", "k4", "k5", "k4", "k5")

    await refused(h, SqlCompleter(h), "token", token=first)

    assert [await SqlCompleter(h).complete(token=token, reply=YES) for token in others] == [False] + [True] * 6


async def test_a_token_stays_valid_after_a_second_sending_under_a_new_key(
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
    assert [await SqlCompleter(h).complete(token=token, reply=YES) for token in tokens] == [False, True]


async def test_a_retired_key_verifies_no_token_until_it_is_reinstated(h: Harness, completer: PythonCompleter) -> None:
    """Section 8: a leaked key is withdrawn for Python and SQL at once, though it is in the ring; others stay valid."""
    _, interaction = await asked(h, Expense, GUARDED)
    _, other = await asked(h, Expense, GUARDED)
    [gone] = await handed_out(h, other.id, "gone")
    token = await h.engine.interactions.token(interaction.id)
    await h.sql("select stepwell.retire_token_key('gone')")
    assert not await completer.complete(token=token, reply=YES)
    await h.sql("select stepwell.retire_token_key('new')")

    said = [
        await refused(h, completer, "token", token=token),  # also of a repeated completion
        await refused(h, completer, "token", interaction=interaction.id, token=token),
        await refused(h, SqlCompleter(h), "token", token=gone),
    ]
    await h.sql("select stepwell.reinstate_token_key('new')")

    keys = [re.search(r"signed with key '(\w+)', which is retired; \w+ (?:out )?a new one", words) for words in said]
    assert [key and key[1] for key in keys] == ["new", "new", "gone"]
    assert await completer.complete(token=token, reply=YES)


async def test_a_key_is_retired_once_and_only_by_its_id(h: Harness) -> None:
    calls = ["retire", "retire", "reinstate", "reinstate"]
    for wrong in ("", "a b", "k" * 33, "new\n", "sw1.new", None):
        for call in ("retire", "reinstate"):
            with pytest.raises(asyncpg.PostgresError, match="key_id: is not of 1 to 32 letters") as caught:
                await h.sql(f"select stepwell.{call}_token_key($1)", wrong)
            assert (caught.value.sqlstate, caught.value.column_name) == ("SW001", "key_id")

    changed = [(await h.sql(f"select stepwell.{call}_token_key('Old_1-a') as it"))[0]["it"] for call in calls]

    assert changed == [True, False, True, False]


async def test_a_token_ends_with_its_interaction(h: Harness, completer: PythonCompleter) -> None:
    """Scenarios 61, 63: expired it is late; of an ended interaction it is closed, even if it is valid."""
    _, interaction = await asked(h, Expense, GUARDED)
    cancelled, other = await asked(h, Expense, GUARDED)
    token, closed = [await h.engine.interactions.token(q.id) for q in (interaction, other)]
    await h.engine.cancel(cancelled.id)
    await h.advance(timedelta(seconds=601))

    await refused(h, completer, "late", token=token)
    await refused(h, completer, "closed", token=closed)


async def test_a_token_of_a_timed_out_interaction_completes_nothing(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 63: late until the timeout is recorded, closed after that; by the token alone, and with the id."""
    expense, interaction = await asked(h, Expense, GUARDED)
    token = await h.engine.interactions.token(interaction.id)
    await h.advance(timedelta(seconds=601))
    await h.drain()

    said = [await refused(h, completer, "closed", **named) for named in (
        {"token": token}, {"interaction": interaction.id, "token": token})]  # fmt: skip

    assert all("timed out" in words for words in said)
    ended = await h.assert_done(expense)
    assert ended.result["status"] == "timed_out"


async def test_an_interaction_asked_again_has_its_own_token(h: Harness, completer: PythonCompleter) -> None:
    """Gap 13 with 61: a retry gives the interaction another deadline; the first token no longer fits then."""
    expense, interaction = await asked(h, Expense, {**GUARDED, "on_timeout": "fail"})
    [earlier] = await handed_out(h, interaction.id, "old")
    before = await h.engine.interactions.token(interaction.id)
    await h.advance(timedelta(seconds=601))
    await h.drain()
    await h.engine.retry(expense.id)

    await refused(h, completer, "token", token=before)
    fresh = await h.engine.interactions.token(interaction.id)
    for token in (earlier, before):
        await refused(h, completer, "token", token=token)

    await completer.complete(token=fresh, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_an_interaction_without_a_deadline_keeps_its_token_when_asked_again(
    h: Harness, completer: PythonCompleter
) -> None:
    """Gap 13 with 61: nothing that the token says has changed."""
    expense, interaction = await asked(h, Expense, {"token": True})
    token = await h.engine.interactions.token(interaction.id)
    await h.engine.cancel(expense.id)
    await h.engine.retry(expense.id)

    assert not await completer.complete(token=token, reply=YES)


@pytest.mark.parametrize("completer_of", [PythonCompleter, SqlCompleter])
async def test_an_item_dispatched_later_has_its_own_token(make_harness: MakeHarness, completer_of: Any) -> None:
    """Scenario 61 of items: one that waits for its window has no deadline yet, and its token says so."""
    machine = each_asker(lambda: range(2), reply=int, token=True, window=1, timeout=timedelta(seconds=600))
    h = await make_harness([machine], token_keys={"new": SECRET})
    each = await h.engine.start(machine)
    await h.drain()
    first, second = [str(row["id"]) for row in await interaction_rows(h, each.id)]
    early = await h.engine.interactions.token(second)
    await h.engine.complete(token=await h.engine.interactions.token(first), reply=0)

    await refused(h, completer_of(h), "token", token=early, reply=1)

    assert not await completer_of(h).complete(token=await h.engine.interactions.token(second), reply=1)


async def test_the_token_is_sent_with_the_interaction(make_harness: MakeHarness) -> None:
    """Scenario 16: the sent envelope is enough to complete, in Python and in SQL, which knows only its hash."""
    recorder = Recorder()
    h = await make_harness([Expense], transports=[recorder], token_keys={"new": SECRET})
    state = {**GUARDED, "transport": "recorder"}
    handles = [await h.engine.start(Expense, state), await h.engine.start(Expense, state)]
    open_one = await h.engine.start(Expense, {"transport": "recorder"})

    await h.drain()

    tokens = {d.instance_id: d.token for d in recorder.sent}
    assert tokens[open_one.id] is None
    assert recorder.sent[0].envelope()["resumeToken"] == tokens[recorder.sent[0].instance_id]
    await PythonCompleter(h).complete(token=tokens[handles[0].id], reply=YES)
    await SqlCompleter(h).complete(token=tokens[handles[1].id], reply=YES)
    await h.drain()
    for handle in handles:
        await h.assert_done(handle)
    rows = await h.sql("select from stepwell.interactions q where q::text like '%' || $1 || '%'", SECRET)
    assert rows == []


async def test_each_item_has_its_own_token(make_harness: MakeHarness) -> None:
    """Scenario 61 of items: the token of one is foreign to its sibling."""
    machine = each_asker(lambda: range(2), reply=int, token=True)
    h = await make_harness([machine], token_keys={"new": SECRET})
    each = await h.engine.start(machine)
    await h.drain()
    first, second = await pending(h)
    token = await h.engine.interactions.token(first.id)

    for completer in (PythonCompleter(h), SqlCompleter(h)):
        await refused(h, completer, "token", interaction=second.id, token=token, reply=1)
        await refused(h, completer, "token", interaction=second.id, reply=1)

    await h.engine.complete(token=token, reply=0)
    await SqlCompleter(h).complete(token=await h.engine.interactions.token(second.id), reply=1)
    await h.drain()
    await h.assert_done(each, [[0, "completed", 0], [1, "completed", 1]])


async def test_an_engine_without_keys_signs_nothing(make_harness: MakeHarness) -> None:
    """Scenario 62: the ask is refused to `handle`, nothing is sent; no token is issued, and none is verified."""
    recorder = Recorder()
    h = await make_harness([Expense], transports=[recorder])
    guarded = await h.engine.start(Expense, {**GUARDED, "transport": "recorder"})
    _, interaction = await asked(h, Expense)
    signed = "sw1.new.W10.abc"

    await h.assert_failed(guarded, "token: this engine has no keys to sign a token; pass them to Engine(token_keys=")

    assert recorder.sent == await interaction_rows(h, guarded.id) == []
    with pytest.raises(SettingError, match="token_keys"):
        await h.engine.interactions.token(interaction.id)
    with pytest.raises(InvalidToken):
        await h.engine.complete(token=signed, reply=YES)


async def test_a_token_is_issued_only_for_interactions_of_the_tenant(h: Harness) -> None:
    """Scenario 59: another tenant's interaction is unknown; requested twice, the token is the same."""
    _, interaction = await asked(h, Expense, GUARDED, tenant="acme")

    with pytest.raises(UnknownInteraction):
        await h.engine.interactions.token(interaction.id)
    one = await h.engine.interactions.token(interaction.id, tenant="acme")

    assert await h.engine.interactions.token(interaction.id, tenant="acme") == one
