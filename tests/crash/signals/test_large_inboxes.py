"""Very large inboxes are read, consumed and deleted in pages."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepwell._core.instance import Claim
from stepwell._store import retention, signals
from stepwell._store.operations import commit
from tests.crash.instances.test_prune_races import LATER, exists, old
from tests.support.commits import full_path
from tests.support.contest import Contest, Contestant, done

PAGE = 3
MANY = 10
INSERT = """
insert into stepwell.signals (instance_id, name, payload, sent_at)
select $1, 'go', '1', now() from generate_series(1, $2::integer)"""
DELETING = ("signals/prune", "signals/drop")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "PAGE", PAGE, raising=False)
    monkeypatch.setattr(retention, "LARGE_INBOX", PAGE, raising=False)


async def signalled(contest: Contest, instance_id: int, number: int = MANY) -> None:
    await contest.sql(INSERT, instance_id, number)


async def left(contest: Contest) -> int:
    return len(await contest.sql("select from stepwell.signals"))


def numbers(by: Contestant) -> list[Any]:
    """How many signals each page had."""
    return [rows[0]["number"] for rows in by.answers(*DELETING)]


async def with_inbox(contest: Contest, by: Contestant) -> Claim:
    """An instance with very many signals, and with an outcome that consumes one."""
    claim = await contest.executing(by)
    await signalled(contest, claim.id)
    await contest.sql("update stepwell.instances set has_inbox = true where id = $1", claim.id)
    return claim


async def test_large_inboxes_are_read_in_pages_and_whole(contest: Contest) -> None:
    [by] = await contest.join(1)
    sizes = {(await contest.executing(by)).id: number for number in (MANY, 0, 1, PAGE, 2 * PAGE)}
    for instance, number in sizes.items():
        await signalled(contest, instance, number)
    stored = await contest.sql("select instance_id, id from stepwell.signals order by id")

    inboxes = await signals.load(by, [*sizes])

    read = [(instance, signal.id) for instance, inbox in sorted(inboxes.items()) for signal in inbox]
    assert read == sorted(tuple(row) for row in stored)
    first, *others = (len(rows) for rows in by.answers("signals/load"))
    assert (first, max(others)) == (PAGE + 1 + PAGE + PAGE, PAGE)


async def test_very_many_signals_are_consumed_in_pages_of_one_transaction(contest: Contest) -> None:
    [by] = await contest.join(1)
    claim = await with_inbox(contest, by)
    inbox = (await signals.load(by, [claim.id]))[claim.id]
    commit = replace(done(claim), consumes=tuple(signal.id for signal in inbox))

    assert await contest.flush(by, commit) == [claim.id]

    assert len(by.answers("signals/consume")) == 4
    assert await left(contest) == 0


async def test_a_large_inbox_is_pruned_in_pages_together_with_its_instance(contest: Contest) -> None:
    [by] = await contest.join(1)
    failed = await old(contest, by)
    await signalled(contest, failed)

    assert await retention.prune(by) == (1, 1)  # type: ignore[arg-type]

    assert numbers(by) == [PAGE, PAGE, PAGE, MANY - 3 * PAGE]
    assert (await exists(contest, failed), await left(contest)) == (False, 0)


async def test_a_partly_pruned_inbox_is_not_visible(contest: Contest) -> None:
    pruning, retrying = await contest.join()
    failed = await old(contest, pruning)
    await signalled(contest, failed)
    await pruning.begin()
    await retention.prune(pruning)  # type: ignore[arg-type]

    assert await left(contest) == MANY
    retry = await contest.blocked(retrying, contest.operating(retrying).retry(failed, None, by=None, tenant=None))
    await pruning.roll_back()

    assert await retry is True
    assert await left(contest) == MANY


async def test_many_small_inboxes_beyond_a_page_are_pruned_in_pages_too(contest: Contest) -> None:
    [by] = await contest.join(1)
    number, each = 50, PAGE
    await contest.harness.engine.migrate()
    ids = [(await contest.harness.engine.start("Plain", {})).id for _ in range(number)]
    for id_ in ids:
        await signalled(contest, id_, each)
        await contest.harness.engine.cancel(id_)
    await contest.harness.advance(LATER)

    assert await retention.prune(by) == (number, number)  # type: ignore[arg-type]

    at_once = 20 * PAGE // each  # by the first read, and as many by the one in the transaction of the pages
    assert sum(numbers(by)) == (number - 2 * at_once) * each
    assert max(numbers(by)) <= PAGE
    assert await left(contest) == 0


async def test_an_end_drops_at_most_a_page_of_signals_and_the_sweep_the_rest(contest: Contest) -> None:
    [by] = await contest.join(1)
    claim = await with_inbox(contest, by)
    [first, *_] = await contest.sql("select id from stepwell.signals order by id")
    end = replace(done(claim), consumes=(first["id"],))  # so it takes a transaction, which drops the inbox

    flushed = await commit.commit(by, [end], full_path())  # type: ignore[arg-type]
    in_flush = numbers(by)
    await signals.sweep(by, flushed.leftovers)

    assert (in_flush, flushed.leftovers) == ([PAGE], [claim.id])
    assert max(numbers(by)) <= PAGE
    assert await left(contest) == 0


async def test_a_restart_of_a_done_instance_drops_the_rest_of_its_inbox_in_pages(contest: Contest) -> None:
    [by] = await contest.join(1)
    claim = await with_inbox(contest, by)
    await contest.flush(by, done(claim))
    await signalled(contest, claim.id)  # as if no sweep had run
    by.sent.clear()

    await contest.operating(by).restart(claim.id, "a", {}, None, by=None, tenant=None)

    assert (max(numbers(by)), await left(contest)) == (PAGE, 0)
    assert await contest.row(claim.id, "status") == "runnable"


async def test_no_page_rereads_what_an_earlier_page_deleted(contest: Contest) -> None:
    """Postgres reads over rows that the same transaction has deleted: the time would grow with the square of the
    inbox."""
    [by] = await contest.join(1)
    failed = await old(contest, by)
    await signalled(contest, failed)

    await retention.prune(by)  # type: ignore[arg-type]

    begins = [args[2] for name, args, _ in by.sent if name == "signals/prune"]
    ends = [rows[0]["id"] for rows in by.answers("signals/prune")]
    assert begins == [0, *ends[:-1]]
    assert ends == sorted(ends)


async def test_inboxes_of_instances_that_are_not_done_are_kept(contest: Contest) -> None:
    [by] = await contest.join(1)
    claim = await with_inbox(contest, by)

    assert await signals.drop(by, [claim.id]) is False

    assert await left(contest) == MANY
