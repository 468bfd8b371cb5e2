"""The conformance suite of transports that bring completions back: nothing is lost, and nothing stops the stream."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from stepwell._core.interaction import Answer
from stepwell.errors import CompletionConflict, DatabaseUnavailable, PayloadTooLarge, UnknownInteraction
from stepwell.testing.transports.conformance import TransportConformance, opened, promise
from stepwell.testing.transports.recorder import Admissions
from stepwell.testing.transports.remote_end import AnsweringSide


class StreamConformance(TransportConformance):
    """For a transport that brings completions back: `far_side` gives an AnsweringSide."""

    @abstractmethod
    def far_side(self) -> AnsweringSide: ...

    @promise
    async def test_a_completion_arrives_whole(self, remote: AnsweringSide) -> None:
        completion = Answer(reply={"to": "Zoë 🙂", "n": [1, None]}, interaction="int-1", correlation="cor-1",
                            tenant="acme", actor="ana", token="sw1.k.p.s")  # fmt: skip  # noqa: S106 - of this test
        admissions = Admissions()
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(completion)
            await admissions.admitted(1)

        came = _with_value(admissions.tried[0])
        if came != completion:
            raise AssertionError(f"{completion} was sent, {came} came")

    @promise
    async def test_a_completion_sent_while_nothing_receives_arrives_later(self, remote: AnsweringSide) -> None:
        admissions = Admissions()
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(_completion("int-1"))
            await admissions.admitted(1)
        await remote.answer(_completion("int-2"))
        async with opened(remote) as transport, admissions.received_by(transport):
            await admissions.admitted_all("int-1", "int-2")

    @promise
    async def test_a_completion_is_acknowledged_only_after_it_was_admitted(self, remote: AnsweringSide) -> None:
        interrupted, again = Admissions(hangs=True), Admissions()
        async with opened(remote) as transport, interrupted.received_by(transport):
            await remote.answer(_completion("int-1"))
            await interrupted.tried_all("int-1")
        async with opened(remote) as transport, again.received_by(transport):
            await again.admitted_all("int-1")

    @promise
    async def test_an_acknowledged_completion_does_not_arrive_again(self, remote: AnsweringSide) -> None:
        first, second = Admissions(), Admissions()
        async with opened(remote) as transport, first.received_by(transport):
            await remote.answer(_completion("int-1"))
            await first.admitted_all("int-1")
            await remote.answer(_completion("int-2"))
            await first.admitted_all("int-2")
        async with opened(remote) as transport, second.received_by(transport):
            await remote.answer(_completion("int-3"))
            await second.admitted_all("int-3")

        second.check_untried("int-1")

    @promise
    async def test_a_completion_of_a_not_yet_known_interaction_is_tried_again(self, remote: AnsweringSide) -> None:
        """A completion may be faster than the commit of its interaction."""
        admissions = Admissions({"int-1": [UnknownInteraction("int-1"), UnknownInteraction("int-1")]})
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(_completion("int-1"))
            await admissions.admitted_all("int-1")

    @promise
    async def test_a_completion_of_an_unknown_interaction_delays_no_other(self, remote: AnsweringSide) -> None:
        admissions = Admissions({"int-1": UnknownInteraction("int-1")})
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(_completion("int-1"))
            await remote.answer(_completion("int-2"))
            await admissions.admitted_all("int-2")

    @promise
    async def test_a_refused_completion_does_not_return_and_delays_no_other(self, remote: AnsweringSide) -> None:
        first, second = Admissions({"int-1": CompletionConflict("int-1")}), Admissions()
        async with opened(remote) as transport, first.received_by(transport):
            await remote.answer(_completion("int-1"))
            await first.tried_all("int-1")
            await remote.answer(_completion("int-2"))
            await first.admitted_all("int-2")
        async with opened(remote) as transport, second.received_by(transport):
            await remote.answer(_completion("int-3"))
            await second.admitted_all("int-3")

        second.check_untried("int-1")

    @promise
    async def test_a_completion_that_cannot_be_accepted_delays_no_other(self, remote: AnsweringSide) -> None:
        admissions = Admissions({"int-1": PayloadTooLarge("reply", 2, 1)})
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(_completion("int-1"))
            await admissions.tried_all("int-1")
            await remote.answer(_completion("int-2"))
            await admissions.admitted_all("int-2")

    @promise
    async def test_a_completion_that_was_not_judged_is_tried_again(self, remote: AnsweringSide) -> None:
        """The database was unavailable for a moment: the completion was not judged."""
        admissions = Admissions({"int-1": [DatabaseUnavailable("away"), DatabaseUnavailable("away")]})
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.answer(_completion("int-1"))
            await admissions.admitted_all("int-1")

    @promise
    async def test_a_message_that_is_no_completion_delays_no_other(self, remote: AnsweringSide) -> None:
        admissions = Admissions()
        async with opened(remote) as transport, admissions.received_by(transport):
            await remote.send_poison()
            await remote.answer(_completion("int-1"))
            await admissions.admitted_all("int-1")


def _with_value(completion: Answer) -> Answer:
    """The completion with its reply as a value; a transport may leave it as the JSON that came."""
    if isinstance(completion.reply, msgspec.Raw):
        return msgspec.structs.replace(completion, reply=msgspec.json.decode(completion.reply))
    return completion


def _completion(interaction: str) -> Answer:
    return Answer(reply={"status": "ok"}, interaction=interaction, tenant="acme")
