"""The conformance suite of transports: what an engine relies on when it sends, as tests to subclass."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from stepwell._core.interaction import Dispatch
from stepwell.errors import Undeliverable
from stepwell.testing.transports.recorder import Admissions
from stepwell.testing.transports.remote_end import FarSide
from stepwell.transports import Transport

LONGEST_BACKOFF: Final = timedelta(days=1)
_FIELDS: Final[dict[str, Any]] = {
    "correlation_id": "c0ffee00-0000-4000-8000-000000000001", "tenant": "acme", "instance_id": 7_000_000_001,
    "machine": "Order", "step": "pay", "transport": "under-test", "index": 3,
    "request": {"to": "Zoë 🙂", "amount": "12.50", "lines": [1, 2.5, None, True, {"deep": ["x"]}], "empty": ""},
    "reply_type": "PaymentStatus", "reply_schema": {"type": "object"}, "idempotency_key": "Order.pay:order=é",
    "attempt": 1, "deadline": datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC), "token": "sw1.k.payload.signature",
}  # fmt: skip


def make_dispatch(interaction_id: str = "int-1", **changes: Any) -> Dispatch:
    """An interaction with every field set, as the suite sends it."""
    return Dispatch(interaction_id=interaction_id, **{**_FIELDS, **changes})


def promise(check: Callable[[Any, Any], Awaitable[None]]) -> Callable[[Any], None]:
    """Make a plain test of a check: any runner can run it, and each has its own loop and remote end."""

    async def run(suite: TransportConformance) -> None:
        async with asyncio.timeout(suite.patience), suite.far_side() as remote:
            await check(suite, remote)

    def test(self: TransportConformance) -> None:
        asyncio.run(run(self))

    # Without functools.wraps: pytest would look through it, and take the remote end for a fixture.
    test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
    return test


@asynccontextmanager
async def opened(remote: FarSide) -> AsyncIterator[Transport]:
    """An open transport of the remote end."""
    transport = remote.make_transport()
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


class TransportConformance(ABC):
    """Subclass it as `class TestMine(TransportConformance)` and write `far_side`; each test is one promise.

    For transports that bring completions back there is StreamConformance.
    """

    patience: float = 30.0  # seconds, for each promise

    @abstractmethod
    def far_side(self) -> FarSide:
        """A fresh remote end."""

    @promise
    async def test_it_declares_what_an_engine_reads_before_it_sends(self, remote: FarSide) -> None:
        transport = remote.make_transport()

        _require(isinstance(transport.name, str) and transport.name != "", "a transport has a name, to be asked by")
        _require(transport.sends, "this suite is for transports that send")
        _require(transport.max_in_flight >= 1, "max_in_flight is how many are sent at a time")
        _require(timedelta(0) < transport.send_timeout, "send_timeout is how long one sending may take")
        waits = [transport.backoff(attempt) for attempt in range(1, 100)]
        _require(timedelta(0) < waits[0], "backoff(1) is more than nothing: a broken system is not flooded")
        _require(waits == sorted(waits), "backoff does not shrink from one attempt to the next")
        _require(waits[-1] <= LONGEST_BACKOFF, "backoff has an end")

    @promise
    async def test_an_interaction_arrives_whole_and_once(self, remote: FarSide) -> None:
        one, other = make_dispatch("int-1"), make_dispatch("int-2", deadline=None, token=None, index=None, request=[])
        async with opened(remote) as transport:
            await transport.send(one)
            await transport.send(other)
            received = await remote.received(2)

        by_id = {interaction["interactionId"]: interaction for interaction in received}
        _require(len(received) == len(by_id) == 2, f"two interactions were sent, {len(received)} came")  # noqa: PLR2004 - so
        _check_whole(by_id["int-1"], one)
        _check_whole(by_id["int-2"], other)

    @promise
    async def test_the_same_interaction_sent_again_has_the_same_ids(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            await transport.send(make_dispatch(attempt=1))
        async with opened(remote) as transport:  # another process, after a crash of the first
            await transport.send(make_dispatch(attempt=2))
            first, second = await remote.received(2)

        _check_whole(first, make_dispatch(attempt=1))
        _check_whole(second, make_dispatch(attempt=2))

    @promise
    async def test_as_many_as_it_allows_are_sent_at_a_time(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            number = min(transport.max_in_flight, 50)
            await asyncio.gather(*(transport.send(make_dispatch(f"int-{n}")) for n in range(number)))
            received = await remote.received(number)

        _require(_ids(received) == {f"int-{n}" for n in range(number)}, f"{number} were sent, {_ids(received)} came")

    @promise
    async def test_what_it_reports_can_be_kept(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            facts = await transport.send(make_dispatch())

        if facts is not None:
            kept = msgspec.json.decode(msgspec.json.encode(facts))
            _require(kept == facts, f"send returns a JSON object, or None; got {facts!r}")

    @promise
    async def test_a_sending_that_fails_raises_and_a_later_one_works(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            await remote.fail()
            error = await _failure(transport, make_dispatch(attempt=1))
            _require(not isinstance(error, Undeliverable), f"what passes is not Undeliverable: {error!r}")

            await remote.recover()
            await transport.send(make_dispatch(attempt=2))
            received = await remote.received(1)

        _check_whole(received[-1], make_dispatch(attempt=2))

    @promise
    async def test_what_can_never_be_sent_is_undeliverable(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            if await remote.refuse():
                error = await _failure(transport, make_dispatch())
                _require(isinstance(error, Undeliverable), f"expected Undeliverable, got {error!r}")

    @promise
    async def test_it_closes_and_opens_again(self, remote: FarSide) -> None:
        transport = remote.make_transport()
        await transport.close()  # a worker that failed to start closes what it has not opened
        for attempt in (1, 2):
            await transport.open()
            await transport.send(make_dispatch(attempt=attempt))
            await transport.close()
        await transport.close()

        _require(len(await remote.received(2)) == 2, "each time it was open, one interaction was sent")  # noqa: PLR2004 - so

    @promise
    async def test_closing_ends_sendings_in_progress(self, remote: FarSide) -> None:
        transport = remote.make_transport()
        await transport.open()
        sending = [asyncio.create_task(_sent(transport, make_dispatch(f"int-{n}"))) for n in range(10)]
        await asyncio.sleep(0)
        await transport.close()

        await asyncio.gather(*sending)  # each is sent or has failed; none hangs

    @promise
    async def test_a_cancelled_sending_leaves_the_transport_usable(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            sending = asyncio.create_task(transport.send(make_dispatch("int-1")))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            await transport.send(make_dispatch("int-2"))
            if "int-2" not in _ids(await remote.received(1)):
                _require("int-2" in _ids(await remote.received(2)), "the next interaction was sent")

    @promise
    async def test_receiving_ends_when_it_is_cancelled(self, remote: FarSide) -> None:
        async with opened(remote) as transport:
            async with Admissions().received_by(transport):
                await transport.send(make_dispatch())

            await transport.send(make_dispatch(attempt=2))


def _require(holds: bool, said: str) -> None:
    if not holds:
        raise AssertionError(said)


def _ids(received: Sequence[Mapping[str, Any]]) -> set[str]:
    return {interaction["interactionId"] for interaction in received}


def _check_whole(received: Any, dispatch: Dispatch) -> None:
    for field, value in dispatch.envelope().items():
        _require(field in received, f"{field} is missing in what the remote end received")
        _require(received[field] == value, f"{field}: {value!r} was sent, {received[field]!r} came")


async def _failure(transport: Transport, dispatch: Dispatch) -> Exception:
    try:
        await transport.send(dispatch)
    except Exception as error:  # noqa: BLE001 - the caller checks it
        return error
    raise AssertionError("send returned although the remote end did not accept the interaction")


async def _sent(transport: Transport, dispatch: Dispatch) -> None:
    with suppress(Exception):  # it may fail here, but it must end
        await transport.send(dispatch)
