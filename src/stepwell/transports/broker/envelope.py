"""The contract with external systems behind a broker: interactions and completions as JSON, and their headers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from stepwell._core.interaction import Answer, Dispatch
from stepwell.errors import InvalidEnvelope

INTERACTION: Final = "question"
COMPLETION: Final = "answer"


class _Envelope(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A completion as JSON; unknown fields are ignored."""

    tenant_id: str
    response_payload: msgspec.Raw  # not decoded before the token is verified
    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    idempotency_key: str | None = None
    actor: str | None = None


_decoder = msgspec.json.Decoder(_Envelope)


@cache
def load_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of an interaction or a completion, from the package."""
    text = files("stepwell.transports.broker").joinpath("schemas", f"{name}.json").read_bytes()
    schema: dict[str, Any] = msgspec.json.decode(text)
    return schema


def write_interaction(dispatch: Dispatch) -> bytes:
    """An interaction as it is sent."""
    return msgspec.json.encode(dispatch.envelope())


def write_headers(dispatch: Dispatch, author: dict[str, str], **responses: str) -> dict[str, str]:
    """The headers of an interaction: the author's, and ours, which win. `responses` are the addresses for the
    completion.

    An empty value, such as the tenant of an engine without one, has no header: not every broker can carry it.
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


def read_completion(body: bytes) -> Answer:
    """A completion as it came; InvalidEnvelope says what is wrong with it."""
    try:
        envelope = _decoder.decode(body)
        body.decode()  # the decoder does not check the payload
    except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise InvalidEnvelope("envelope", str(error) or type(error).__name__) from error
    completion = Answer(
        reply=envelope.response_payload,
        interaction=_named(envelope.interaction_id),
        correlation=_named(envelope.correlation_id),
        token=_named(envelope.resume_token),
        actor=_named(envelope.actor),
        tenant=envelope.tenant_id,
    )
    if completion.interaction is None and completion.correlation is None:
        raise InvalidEnvelope("envelope", "names no interaction: interactionId and correlationId are both missing")
    return completion


def _named(text: str | None) -> str | None:
    """A blank value counts as missing: some languages cannot leave a field out."""
    return text if text is not None and text.strip() else None
