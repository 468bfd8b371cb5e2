"""What only Kafka has: keys, partitions, offsets, producers that end."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("confluent_kafka", reason='the extra "kafka" is not installed')

from confluent_kafka import KafkaError

from stepwell import DatabaseUnavailable
from stepwell.testing.admissions import Admissions
from stepwell.transports import Answer, SendFailed
from tests.asks.machines import Expense
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.transports.brokers.kafka_side import KafkaSide
from tests.transports.brokers.promises import opened_one
from tests.transports.brokers.sides import envelope
from tests.transports.dispatches import make_dispatch


@pytest.fixture
def side(kafka: KafkaSide) -> KafkaSide:
    return kafka


def answer_to(interaction: str) -> bytes:
    return envelope(Answer(reply={"status": "ok"}, interaction=interaction, tenant="acme"))


@pytest.mark.parametrize(("key", "value"), [(None, b"int-1"), ("interactionId", b"int-1"), ("correlationId", b"cor-1")])
async def test_questions_are_keyed_as_declared(side: KafkaSide, key: str | None, value: bytes) -> None:
    """Scenario 77."""
    async with opened_one(side, **({} if key is None else {"key": key})) as transport:
        kept = await transport.send(make_dispatch())

    [letter] = await side.letters(1)
    assert letter.key == value
    assert kept == {
        "requestTopic": f"{side.name}.ask", "responseTopic": f"{side.name}.say", "key": value.decode(),
        "partition": kept["partition"], "offset": 0,
    }  # fmt: skip


async def test_a_dead_letter_keeps_its_key_and_headers_and_says_where_it_lay(side: KafkaSide) -> None:
    async with opened_one(side) as transport, Admissions().received_by(transport):
        await side.put(None, key=b"k", headers=[("theirs", b"\xff"), ("stepwell-reason", b"old")], partition=1)  # type: ignore[arg-type]
        [dead] = await side.dead_letters(1)

    assert (dead.body, dead.key) == (b"", b"k")
    assert dead.headers == {
        "theirs": "\N{REPLACEMENT CHARACTER}", "stepwell-reason-code": "InvalidEnvelope",
        "stepwell-reason": dead.headers["stepwell-reason"], "stepwell-origin-topic": f"{side.name}.say",
        "stepwell-origin-partition": "1", "stepwell-origin-offset": "0",
    }  # fmt: skip
    assert "truncated" in dead.headers["stepwell-reason"]


async def test_a_dead_letter_whose_own_headers_leave_no_room_says_why_all_the_same(side: KafkaSide) -> None:
    admissions = Admissions()
    async with opened_one(side) as transport, admissions.received_by(transport):
        await side.put(b"{" + b" " * 400, headers=[("theirs", b"x" * 999_400)], partition=0)
        await side.put(answer_to("int-1"), partition=0)
        await admissions.admitted_all("int-1")
        [dead] = await side.dead_letters(1)

    assert dead.body == b"{" + b" " * 255
    assert "theirs" not in dead.headers
    assert (dead.headers["stepwell-reason-code"], dead.headers["stepwell-truncated"]) == ("InvalidEnvelope", "401")


async def test_an_answer_that_nobody_can_judge_holds_up_only_what_lies_behind_it(side: KafkaSide) -> None:
    """Scenario 78: other partitions go on, and their offsets are committed."""
    first, second = Admissions({"stuck": [DatabaseUnavailable("away")] * 100}), Admissions()
    await side.put(answer_to("before"), partition=0)
    await side.put(answer_to("stuck"), partition=0)
    await side.put(answer_to("behind"), partition=0)
    others = [f"other-{n}" for n in range(5)]
    async with opened_one(side) as transport, first.received_by(transport):
        await first.admitted_all("before")
        for other in others:  # one after the other, so that there is more than one batch
            await side.put(answer_to(other), partition=1)
            await first.admitted_all(other)
    async with opened_one(side) as transport, second.received_by(transport):
        await second.admitted_all("stuck", "behind")
        await side.put(answer_to("last"), partition=1)
        await second.admitted_all("last")

    assert [str(answer.interaction) for answer in first.done if answer.interaction != "behind"] == ["before", *others]
    for other in others[:-1]:  # the last may have been admitted in the moment in which the first member left
        second.check_untried(other)


async def test_no_more_are_in_hand_than_declared(side: KafkaSide) -> None:
    admissions = Admissions(hangs=True)
    for number in range(6):
        await side.put(answer_to(f"int-{number}"), partition=number % 2)
    async with opened_one(side, batch=3) as transport, admissions.received_by(transport):
        await admissions.tried_some(1)
        await side.dead_letters(0)  # a request and its answer, in which others could have come

    assert len(admissions.tried) <= 3


async def test_answers_with_one_key_are_judged_in_their_order_also_when_the_first_has_to_wait(side: KafkaSide) -> None:
    admissions = Admissions({"int-1": [DatabaseUnavailable("away")]})
    for interaction in ("int-1", "int-2"):
        await side.put(answer_to(interaction), key=b"k")
    await side.put(answer_to("int-3"), key=b"other")
    async with opened_one(side) as transport, admissions.received_by(transport):
        await admissions.admitted_all("int-1", "int-2", "int-3")

    done = [answer.interaction for answer in admissions.done]
    assert done.index("int-1") < done.index("int-2")


async def test_while_the_database_is_away_for_long_nothing_is_committed_and_the_group_is_kept(side: KafkaSide) -> None:
    """Kafka gives the partitions of a member to others that it does not hear from; here it hears from it."""
    admissions = Admissions({"int-1": [DatabaseUnavailable("away")] * 4})  # 1.5 seconds
    config = {**side.options["config"], "max.poll.interval.ms": 1000}
    async with opened_one(side, config=config) as transport, admissions.received_by(transport):
        await side.put(answer_to("int-1"), partition=0)
        await admissions.admitted_all("int-1")
        await side.put(answer_to("int-2"), partition=0)  # behind the other: if that one came again, it came first
        await admissions.admitted_all("int-2")

    assert [answer.interaction for answer in admissions.tried] == ["int-1"] * 5 + ["int-2"]


async def test_partitions_that_go_to_another_in_the_middle_are_settled_there(side: KafkaSide) -> None:
    stuck, other = Admissions(hangs=True), Admissions()
    for partition in (0, 1):
        await side.put(answer_to(f"int-{partition}"), partition=partition)
    async with opened_one(side) as first, stuck.received_by(first):
        await stuck.tried_some(1)
        async with opened_one(side) as second, other.received_by(second):
            await other.admitted(1)
    async with opened_one(side) as third, other.received_by(third):
        await other.admitted_all("int-0", "int-1")


async def test_a_producer_that_is_given_up_for_good_is_followed_by_another(side: KafkaSide) -> None:
    async with opened_one(side, timeout=10.0) as transport:
        side.cluster.refuse_next_records(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(SendFailed, match="sequence"):
            await transport.send(make_dispatch())

        await transport.send(make_dispatch(attempt=2))

    assert [letter.document["attempt"] for letter in await side.letters(1)] == [2]


async def test_a_topic_that_is_made_later_is_found_and_stops_nobody_meanwhile(
    side: KafkaSide, make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    late = f"{side.name}.late"
    h = await make_harness([Expense], transports=[side.make_transport(requests=late)])
    async with h.engine.worker():
        asking = await h.engine.start(Expense, {"transport": "broker"})
        other = await h.engine.start(Expense, {"seconds": 0.01})
        await eventually(lambda: f"there is no topic {late!r}" in caplog.text)
        assert (await other.result(timeout=30))["status"] == "timed_out"

        side.cluster.create(late)
        [letter] = await side.read(late, 1)

    assert letter.document["executionId"] == str(asking.id)


async def test_it_closes_although_the_broker_is_away(side: KafkaSide) -> None:
    admissions = Admissions()
    usual = {**side.options["config"], "metadata.recovery.strategy": "rebootstrap"}
    async with asyncio.timeout(20), opened_one(side, config=usual) as transport:
        async with admissions.received_by(transport):
            await side.put(answer_to("int-1"))
            await admissions.admitted(1)
            await side.fail()
        sending = asyncio.create_task(transport.send(make_dispatch()))
        await asyncio.sleep(0)
    await side.recover()

    with pytest.raises(SendFailed):
        await sending
