"""The suite of transports: right ones pass it, and each promise can be broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pytest

from stepwell.testing import FarSide, StreamConformance, TransportConformance
from stepwell.transports import Transport, Webhook
from tests.features.transports import broken
from tests.features.transports.dispatches import SECRET
from tests.features.transports.memory import BrokerSide, Memory
from tests.features.transports.servers import Server, response


class ServerSide(FarSide):
    """The remote end of a webhook: an HTTP server."""

    async def __aenter__(self) -> Self:
        self.server = Server()
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.server.stop()

    def make_transport(self) -> Transport:
        pytest.importorskip("aiohttp", reason='the extra "webhook" is not installed')
        return Webhook("payments", url=self.server.url, secret=SECRET, allow_private=True)

    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        return [request.document for request in await self.server.seen(number)]

    async def fail(self) -> None:
        await self.server.stop()

    async def recover(self) -> None:
        await self.server.start()

    async def refuse(self) -> bool:
        self.server.default = response(410)
        return True


class TestWebhook(TransportConformance):
    def far_side(self) -> FarSide:
        return ServerSide()


class TestMemory(StreamConformance):
    def far_side(self) -> BrokerSide:
        return BrokerSide()


class Suite(StreamConformance):
    """The suite, over a transport that is to be found out."""

    patience = 0.3

    def __init__(self, kind: type[Memory]) -> None:
        self.kind = kind

    def far_side(self) -> BrokerSide:
        return BrokerSide(self.kind)


@pytest.mark.parametrize(("kind", "promise"), [
    (broken.Nameless, "it_declares_what_an_engine_reads_before_it_sends"),
    (broken.Restless, "it_declares_what_an_engine_reads_before_it_sends"),
    (broken.Breathless, "it_declares_what_an_engine_reads_before_it_sends"),
    (broken.Shortening, "an_interaction_arrives_whole_and_once"),
    (broken.Stuttering, "an_interaction_arrives_whole_and_once"),
    (broken.Renaming, "the_same_interaction_sent_again_has_the_same_ids"),
    (broken.Forgetful, "as_many_as_it_allows_are_sent_at_a_time"),
    (broken.Talkative, "what_it_reports_can_be_kept"),
    (broken.Careless, "a_sending_that_fails_raises_and_a_later_one_works"),
    (broken.Hopeful, "what_can_never_be_sent_is_undeliverable"),
    (broken.OneLife, "it_closes_and_opens_again"),
    (broken.Hanging, "closing_ends_sendings_in_progress"),
    (broken.Clinging, "receiving_ends_when_it_is_cancelled"),
    (broken.Locking, "a_cancelled_sending_leaves_the_transport_usable"),
    (broken.Blurring, "a_completion_arrives_whole"),
    (broken.Deaf, "a_completion_sent_while_nothing_receives_arrives_later"),
    (broken.Hasty, "a_completion_is_acknowledged_only_after_it_was_admitted"),
    (broken.Unacknowledging, "an_acknowledged_completion_does_not_arrive_again"),
    (broken.Impatient, "a_completion_of_a_not_yet_known_interaction_is_tried_again"),
    (broken.Insisting, "a_completion_of_an_unknown_interaction_delays_no_other"),
    (broken.Insisting, "a_refused_completion_does_not_return_and_delays_no_other"),
    (broken.Fragile, "a_refused_completion_does_not_return_and_delays_no_other"),
    (broken.Dropping, "a_completion_that_was_not_judged_is_tried_again"),
    (broken.Insisting, "a_completion_that_cannot_be_accepted_delays_no_other"),
    (broken.Fragile, "a_message_that_is_no_completion_delays_no_other"),
])  # fmt: skip
def test_every_conformance_test_catches_its_broken_transport(kind: type[Memory], promise: str) -> None:
    check = getattr(Suite(kind), f"test_{promise}")

    with pytest.raises(Exception) as found:  # noqa: PT011 - an AssertionError, or what the transport itself raised
        check()

    assert not isinstance(found.value, AttributeError)


def test_every_conformance_test_has_a_broken_transport() -> None:
    marks = test_every_conformance_test_catches_its_broken_transport.pytestmark  # type: ignore[attr-defined]
    broken_ones = {f"test_{promise}" for _, promise in marks[0].args[1]}

    assert {name for name in dir(StreamConformance) if name.startswith("test_")} == broken_ones
