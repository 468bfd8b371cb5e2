"""The contract with the other side of a broker: questions and answers as JSON, and the headers beside them."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from stepwell._core.interactions import Answer, Dispatch
from stepwell.errors import InvalidEnvelope

QUESTION: Final = "question"
ANSWER: Final = "answer"


class _Envelope(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """An answer as it is written; what is not listed here is ignored."""

    tenant_id: str
    response_payload: Any
    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    idempotency_key: str | None = None
    actor: str | None = None


_decoder = msgspec.json.Decoder(_Envelope)


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a question or an answer, as the package carries it."""
    text = files("stepwell.transports").joinpath("schemas", f"{name}.json").read_bytes()
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def write_question(dispatch: Dispatch) -> bytes:
    """A question as it is sent."""
    return msgspec.json.encode(dispatch.envelope())


def write_headers(dispatch: Dispatch, author: dict[str, str], **responses: str) -> dict[str, str]:
    """The headers of a question: an author's own, and ours, which win. `responses` says where the answer is to go.

    What is empty, such as the tenant of an engine that has none, has no header: not every broker can carry it.
    """
    own = {
        "stepwell-tenant-id": dispatch.tenant,
        "stepwell-execution-id": str(dispatch.instance_id),
        "stepwell-interaction-id": dispatch.interaction_id,
        "stepwell-correlation-id": dispatch.correlation_id,
        "stepwell-step-id": f"{dispatch.machine}.{dispatch.step}",
        "stepwell-attempt": str(dispatch.attempt),
        **{f"stepwell-response-{what}": where for what, where in responses.items()},
    }
    return {**author, **{name: value for name, value in own.items() if value}}


def read_answer(body: bytes) -> Answer:
    """An answer as it came; InvalidEnvelope says what is wrong with it."""
    try:
        envelope = _decoder.decode(body)
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise InvalidEnvelope("envelope", str(error) or type(error).__name__) from error
    answer = Answer(
        reply=envelope.response_payload,
        interaction=_named(envelope.interaction_id),
        correlation=_named(envelope.correlation_id),
        token=_named(envelope.resume_token),
        actor=_named(envelope.actor),
        tenant=envelope.tenant_id,
    )
    if answer.interaction is None and answer.correlation is None:
        raise InvalidEnvelope("envelope", "names no question: `interactionId` and `correlationId` are missing or blank")
    return answer


def _named(text: str | None) -> str | None:
    """What is blank is not there: some languages can not leave a field out."""
    return text if text is not None and text.strip() else None
