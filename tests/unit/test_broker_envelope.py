"""The contract with external systems over a broker: sent and accepted messages fit the schemas."""

from __future__ import annotations

from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import InvalidEnvelope
from stepwell.transports import Answer
from stepwell.transports.broker.envelope import (
    COMPLETION,
    INTERACTION,
    load_schema,
    read_completion,
    write_headers,
    write_interaction,
)
from stepwell.transports.broker.settle import Refusal
from tests.features.transports.dispatches import make_dispatch

RIGHT: dict[str, Any] = {"tenantId": "acme", "interactionId": "int-1", "responsePayload": {"ok": True}}
FIELDS = ("tenantId", "interactionId", "correlationId", "resumeToken", "idempotencyKey", "actor", "responsePayload",
          "x")  # fmt: skip
VALUES = st.one_of(st.none(), st.sampled_from(["", " ", "\t\n", "a", "é"]), st.text(max_size=5), st.integers(0, 9),
                   st.lists(st.none(), max_size=1))  # fmt: skip


@pytest.mark.parametrize("name", [INTERACTION, COMPLETION])
def test_the_published_schemas_are_valid_json_schemas(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load_schema(name))


@pytest.mark.parametrize("changes", [
    {}, {"deadline": None, "token": None, "index": None}, {"index": 7, "request": None, "tenant": ""},
])  # fmt: skip
def test_sent_messages_fit_the_schema(changes: dict[str, Any]) -> None:
    dispatch = make_dispatch(**changes)

    sent = msgspec.json.decode(write_interaction(dispatch))

    jsonschema.validate(sent, load_schema(INTERACTION))
    assert sent == dispatch.envelope()
    assert set(sent) == set(load_schema(INTERACTION)["properties"])


CHANGES = st.dictionaries(st.sampled_from(FIELDS), VALUES)


@given(st.one_of(CHANGES, CHANGES.map(lambda changes: {**RIGHT, **changes}), VALUES))
def test_accepted_messages_fit_the_schema(document: Any) -> None:
    allowed = jsonschema.Draft202012Validator(load_schema(COMPLETION)).is_valid(document)

    try:
        read_completion(msgspec.json.encode(document))
    except InvalidEnvelope:
        assert not allowed
    else:
        assert allowed


def test_a_whole_interaction_with_a_reply_is_a_completion() -> None:
    dispatch = make_dispatch()

    answer = read_completion(msgspec.json.encode({**dispatch.envelope(), "responsePayload": [1], "actor": "ana"}))

    assert bytes(answer.reply) == b"[1]"  # nothing is made of it before the token is verified
    assert msgspec.structs.replace(answer, reply=None) == Answer(
        reply=None, interaction="int-1", correlation="cor-1", token="sw1.k.p.s", actor="ana", tenant="acme",  # noqa: S106 - of this test
    )  # fmt: skip


def test_blank_fields_count_as_missing() -> None:
    blank = {"correlationId": "", "resumeToken": " ", "actor": "", "idempotencyKey": ""}

    answer = read_completion(msgspec.json.encode({**RIGHT, **blank}))

    assert msgspec.structs.replace(answer, reply=None) == Answer(reply=None, interaction="int-1", tenant="acme")


@pytest.mark.parametrize(("body", "problem"), [
    (b"", "truncated"), (b"{", "truncated"), (b"null", "object"), (b"\xff", "malformed"),
    (b'{"tenantId": "a", "responsePayload": ' + b"[" * 100_000, "recursion"),
    (b'{"tenantId": "a", "interactionId": "i"}', "responsePayload"),
    (b'{"interactionId": "i", "responsePayload": 1}', "tenantId"),
    (b'{"tenantId": "a", "responsePayload": 1}', "interactionId"),
    (b'{"tenantId": "a", "resumeToken": "sw1.k.p.s", "responsePayload": 1}', "interactionId"),
    (b'{"tenantId": "a", "interactionId": "i", "responsePayload": NaN}', "malformed"),
    (b'{"tenantId": "a", "interactionId": "i", "responsePayload": "\xff"}', "decode"),
])  # fmt: skip
def test_an_invalid_completion_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        read_completion(body)

    assert problem in str(refused.value)
    assert refused.value.field == "envelope"


def test_our_headers_win_and_empty_values_have_no_header() -> None:
    author = {"x-team": "shop", "stepwell-tenant-id": "globex"}

    headers = write_headers(make_dispatch(), author, topic="answers")

    assert headers == {
        "x-team": "shop", "stepwell-tenant-id": "acme", "stepwell-execution-id": "42",
        "stepwell-interaction-id": "int-1", "stepwell-correlation-id": "cor-1", "stepwell-step-id": "Order.pay",
        "stepwell-attempt": "1", "stepwell-response-topic": "answers",
    }  # fmt: skip
    assert "stepwell-tenant-id" not in write_headers(make_dispatch(tenant=""), {})


def test_a_reason_fits_any_header() -> None:
    refusal = Refusal.of(InvalidEnvelope("envelope", "Zoë\r\nx-evil: 1\0" + "x" * 10_000))

    assert refusal.code == "InvalidEnvelope"
    assert refusal.reason.startswith("envelope: Zo\\xeb??x-evil: 1?x")
    assert len(refusal.reason) == 500
    assert Refusal.of(ValueError()).reason == "ValueError"
