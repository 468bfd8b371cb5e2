"""What only Kafka has: keys, partitions, offsets, producers that end."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("confluent_kafka", reason='the extra "kafka" is not installed')

from confluent_kafka import KafkaError

from stepwell import DatabaseUnavailable
from stepwell.testing.transports.recorder import Admissions
from stepwell.transports import Answer, SendFailed
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Expense
from tests.features.transports.brokers.kafka_side import KafkaSide
from tests.features.transports.brokers.promises import opened_one
from tests.features.transports.brokers.sides import envelope
from tests.features.transports.dispatches import make_dispatch
from tests.support.waiting import eventually


@pytest.fixture
def side(kafka: KafkaSide) -> KafkaSide:
    return kafka


def completion_of(interaction: str) -> bytes:
    return envelope(Answer(reply={"status": "ok"}, interaction=interaction, tenant="acme"))


@pytest.mark.parametrize(("key", "value"), [(None, b"int-1"), ("interactionId", b"int-1"), ("correlationId", b"cor-1")])
async def test_interactions_have_the_declared_message_key(side: KafkaSide, key: str | None, value: bytes) -> None:
    """Scenario 77."""
    async with opened_one(side, **({} if key is None else {"key": key})) as transport:
        kept = await transport.send(make_dispatch())

    [letter] = await side.letters(1)
    assert letter.key == value
    assert kept == {
        "requestTopic": f"{side.name}.ask", "responseTopic": f"{side.name}.say", "key": value.decode(),
        "partition": kept["partition"], "offset": 0,
    }  # fmt: skip


async def test_a_dead_letter_keeps_key_and_headers_and_names_its_origin(side: KafkaSide) -> None:
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


async def test_a_dead_letter_with_large_headers_still_has_its_reason(side: KafkaSide) -> None:
    admissions = Admissions()
    async with opened_one(side) as transport, admissions.received_by(transport):
        await side.put(b"{" + b" " * 400, headers=[("theirs", b"x" * 999_400)], partition=0)
        await side.put(completion_of("int-1"), partition=0)
        await admissions.admitted_all("int-1")
        [dead] = await side.dead_letters(1)

    assert dead.body == b"{" + b" " * 255
    assert "theirs" not in dead.headers
    assert (dead.headers["stepwell-reason-code"], dead.headers["stepwell-truncated"]) == ("InvalidEnvelope", "401")


async def test_a_completion_that_cannot_be_judged_delays_only_later_ones(side: KafkaSide) -> None:
    """Scenario 78: other partitions continue, and their offsets are committed."""
    first, second = Admissions({"stuck": [DatabaseUnavailable("away")] * 100}), Admissions()
    await side.put(completion_of("before"), partition=0)
    await side.put(completion_of("stuck"), partition=0)
    await side.put(completion_of("behind"), partition=0)
    others = [f"other-{n}" for n in range(5)]
    async with opened_one(side) as transport, first.received_by(transport):
        await first.admitted_all("before")
        for other in others:  # one after the other, so that there is more than one batch
            await side.put(completion_of(other), partition=1)
            await first.admitted_all(other)
    async with opened_one(side) as transport, second.received_by(transport):
        await second.admitted_all("stuck", "behind")
        await side.put(completion_of("last"), partition=1)
        await second.admitted_all("last")

    assert [str(answer.interaction) for answer in first.done if answer.interaction != "behind"] == ["before", *others]
    for other in others[:-1]:  # the last may have been admitted in the moment in which the first member left
        second.check_untried(other)


async def test_no_more_messages_are_in_flight_than_declared(side: KafkaSide) -> None:
    admissions = Admissions(hangs=True)
    for number in range(6):
        await side.put(completion_of(f"int-{number}"), partition=number % 2)
    async with opened_one(side, batch=3) as transport, admissions.received_by(transport):
        await admissions.tried_some(1)
        await side.dead_letters(0)  # a request and its response, in which others could have come

    assert len(admissions.tried) <= 3


async def test_completions_of_one_key_keep_their_order_if_the_first_must_wait(side: KafkaSide) -> None:
    admissions = Admissions({"int-1": [DatabaseUnavailable("away")]})
    for interaction in ("int-1", "int-2"):
        await side.put(completion_of(interaction), key=b"k")
    await side.put(completion_of("int-3"), key=b"other")
    async with opened_one(side) as transport, admissions.received_by(transport):
        await admissions.admitted_all("int-1", "int-2", "int-3")

    done = [answer.interaction for answer in admissions.done]
    assert done.index("int-1") < done.index("int-2")


async def test_a_long_database_outage_commits_no_offset_and_keeps_the_group(side: KafkaSide) -> None:
    """Kafka gives the partitions of a silent member to others; this member is not silent."""
    admissions = Admissions({"int-1": [DatabaseUnavailable("away")] * 4})  # 1.5 seconds
    config = {**side.options["config"], "max.poll.interval.ms": 1000}
    async with opened_one(side, config=config) as transport, admissions.received_by(transport):
        await side.put(completion_of("int-1"), partition=0)
        await admissions.admitted_all("int-1")
        await side.put(completion_of("int-2"), partition=0)  # behind the other: if that one came again, it came first
        await admissions.admitted_all("int-2")

    assert [answer.interaction for answer in admissions.tried] == ["int-1"] * 5 + ["int-2"]


async def test_partitions_that_move_during_work_are_settled_by_their_new_owner(side: KafkaSide) -> None:
    stuck, other = Admissions(hangs=True), Admissions()
    for partition in (0, 1):
        await side.put(completion_of(f"int-{partition}"), partition=partition)
    async with opened_one(side) as first, stuck.received_by(first):
        await stuck.tried_some(1)
        async with opened_one(side) as second, other.received_by(second):
            await other.admitted(1)
    async with opened_one(side) as third, other.received_by(third):
        await other.admitted_all("int-0", "int-1")


async def test_a_producer_that_failed_for_good_is_replaced(side: KafkaSide) -> None:
    async with opened_one(side, timeout=10.0) as transport:
        side.cluster.refuse_next_records(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
        with pytest.raises(SendFailed, match="sequence"):
            await transport.send(make_dispatch())

        await transport.send(make_dispatch(attempt=2))

    assert [letter.document["attempt"] for letter in await side.letters(1)] == [2]


async def test_a_topic_that_is_created_later_is_found_and_stops_no_other(
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


async def test_a_transport_closes_without_its_broker(side: KafkaSide) -> None:
    admissions = Admissions()
    usual = {**side.options["config"], "metadata.recovery.strategy": "rebootstrap"}
    async with asyncio.timeout(20), opened_one(side, config=usual) as transport:
        async with admissions.received_by(transport):
            await side.put(completion_of("int-1"))
            await admissions.admitted(1)
            await side.fail()
        sending = asyncio.create_task(transport.send(make_dispatch()))
        await asyncio.sleep(0)
    await side.recover()

    with pytest.raises(SendFailed):
        await sending
