"""The contents of a request, read from a stream: no more than is allowed, and nothing that is ambiguous."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.datastructures import QueryParams
from starlette.requests import Request

from stepwell.web.bodies import Completion, read_completion
from stepwell.web.interactions import PendingQuery, read_query
from stepwell.web.problems import Problem

MOST = 1024
JSON = ("content-type", "application/json")


class Sender:
    """A client that sends a body in chunks, and counts those that were taken."""

    def __init__(self, *chunks: bytes) -> None:
        self.taken = 0
        self._chunks = self._messages(chunks)

    async def _messages(self, chunks: tuple[bytes, ...]) -> AsyncIterator[dict[str, Any]]:
        for chunk in chunks:
            self.taken += 1
            yield {"type": "http.request", "body": chunk, "more_body": True}
        yield {"type": "http.request", "body": b"", "more_body": False}

    async def receive(self) -> Any:
        return await anext(self._chunks)

    def request(self, *headers: tuple[str, str]) -> Request:
        raw = [(name.encode(), value.encode()) for name, value in headers]
        return Request({"type": "http", "method": "POST", "path": "/", "headers": raw}, self.receive)


async def parse(body: bytes) -> Completion:
    return await read_completion(Sender(body).request(JSON), 1024 * 1024)


async def test_a_whole_completion_is_read_and_blank_names_are_none() -> None:
    body = (
        b'{"interactionId": " q-1 ", "correlationId": "", "resumeToken": "  ", "idempotencyKey": "k",'
        b' "responsePayload": {"approved": true, "big": 123456789012345678901234567890}, "actor": "J\xc3\xb6"}'
    )

    found = await parse(body)

    assert (found.interaction, found.correlation, found.token, found.actor) == ("q-1", None, None, "Jö")
    assert bytes(found.reply) == b'{"approved": true, "big": 123456789012345678901234567890}'  # as it was sent


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"])
async def test_json_is_accepted_under_all_its_content_types(media: str) -> None:
    sender = Sender(b'{"responsePayload": null}')

    found = await read_completion(sender.request(("content-type", media)), MOST)

    assert bytes(found.reply) == b"null"


@pytest.mark.parametrize(
    "headers",
    [[], [("content-type", "")], [("content-type", "text/plain")], [("content-type", "application/jsonp")],
     [("content-type", "application/xml; a=application/json")], [("content-type", "multipart/form-data")],
     [JSON, ("content-encoding", "gzip")]],
)  # fmt: skip
async def test_a_body_that_is_not_sent_as_json_is_not_read(headers: list[tuple[str, str]]) -> None:
    sender = Sender(b'{"responsePayload": null}')

    with pytest.raises(Problem) as refused:
        await read_completion(sender.request(*headers), MOST)

    assert (refused.value.status, refused.value.reason, sender.taken) == (415, "media", 0)


async def test_a_body_with_too_large_a_content_length_is_not_read() -> None:
    sender = Sender(b"x")

    for announced in (MOST + 1, 10**30):
        with pytest.raises(Problem) as refused:
            await read_completion(sender.request(JSON, ("content-length", str(announced))), MOST)
        assert (refused.value.status, refused.value.reason, sender.taken) == (413, "size", 0)


async def test_a_body_that_turns_out_too_long_is_read_no_further() -> None:
    sender = Sender(*[b"x" * 100] * 1_000)

    with pytest.raises(Problem) as refused:
        await read_completion(sender.request(JSON, ("content-length", "5")), MOST)

    assert (refused.value.status, sender.taken) == (413, 11)


async def test_a_body_of_the_maximum_size_is_read() -> None:
    body = b'{"responsePayload": "' + b"x" * (MOST - 23) + b'"}'
    assert len(body) == MOST

    found = await read_completion(Sender(body[:7], b"", body[7:]).request(JSON), MOST)

    assert len(bytes(found.reply)) == MOST - 21


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        (b"", None, "is not JSON"),
        (b"{", None, "is not JSON"),
        (b"\xff", None, "is not JSON"),
        (b'{"responsePayload": NaN}', None, "is not JSON"),
        (b'{"responsePayload": 1} x', None, "is not JSON"),
        (b'{"responsePayload": "\xff"}', None, "is not JSON"),
        (b'{"responsePayload": "\\ud800"}', None, "is not JSON"),
        (b'\xef\xbb\xbf{"responsePayload": 1}', None, "is not JSON"),
        (b"[]", None, "not a completion"),
        (b"null", None, "not a completion"),
        (b"{}", "responsePayload", "is missing"),
        (b'{"responsePayload": 1, "replyPayload": 2}', "replyPayload", "is unknown (known: interactionId, "),
        (b'{"responsePayload": 1, "a`b": 2}', "a`b", "is unknown"),
        (b'{"responsePayload": 1, "%s": 2}' % (b"x" * 900), "x" * 200, "x: is unknown"),
        (b'{"responsePayload": 1, "actor": 5}', "actor", "Expected `str | null`, got `int`"),
        (b'{"responsePayload": 1, "interactionId": ["x"]}', "interactionId", "Expected"),
        (b'{"responsePayload": 1, "responsePayload": 2}', None, "one of its names twice"),
        (b'{"responsePayload": [1, 2], "responsePayload": [1, 2]}', None, "one of its names twice"),
        (b'{"responsePayload": "a,b", "actor": "ana", "act\\u006fr": "bob"}', None, "one of its names twice"),
        (b'{"actor": null, "responsePayload": {"a": [",", "\\",{"]}, "actor": null}', None, "one of its names twice"),
    ],
)
async def test_an_invalid_completion_is_refused_with_the_field(body: bytes, field: str | None, words: str) -> None:
    with pytest.raises(Problem) as refused:
        await parse(body)

    assert (refused.value.status, refused.value.reason, refused.value.field) == (400, "malformed", field)
    assert words in refused.value.detail


@pytest.mark.parametrize("depth", [5_000, 200_000])
async def test_a_body_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(Problem) as refused:
        await parse(b'{"responsePayload": ' + b"[" * depth + b"]" * depth + b"}")

    assert (refused.value.status, refused.value.detail) == (400, "the body is nested too deeply")


def test_a_query_is_read_and_blank_names_are_none() -> None:
    query = "assignee=ana&group=+&machine=&step=approve&transport=manual&overdue=true&limit=500"
    found = read_query(QueryParams(query))

    assert found == PendingQuery(assignee="ana", step="approve", transport="manual", overdue=True, limit=500)
    assert read_query(QueryParams("")) == PendingQuery(limit=50)


@pytest.mark.parametrize(
    ("query", "field"),
    [("limit=0", "limit"), ("limit=501", "limit"), ("limit=-1", "limit"), ("limit=", "limit"), ("limit=1.5", "limit"),
     ("limit=%C2%B2", "limit"), ("limit=%D9%A3", "limit"), ("limit=1_0", "limit"), ("limit=" + "9" * 5_000, "limit"),
     ("limit=000000001" + "0" * 4_400, "limit"), ("limit=000000001" + "x" * 4_400, "limit"),
     ("overdue=", "overdue"), ("overdue=1", "overdue"), ("overdue=True", "overdue"), ("stepId=x", "stepId"),
     ("group=a&group=b", "group"), ("tenant=acme", "tenant")],
)  # fmt: skip
def test_an_invalid_query_is_refused_with_the_parameter(query: str, field: str) -> None:
    with pytest.raises(Problem) as refused:
        read_query(QueryParams(query))

    assert (refused.value.status, refused.value.reason, refused.value.field) == (400, "malformed", field)
