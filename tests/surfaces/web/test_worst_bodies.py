"""H2, M6: what a body may cost. The work that it causes is counted here; `make bodies` measures the time."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepwell._core.serialization import codec
from tests.features.interactions.looks import snapshot
from tests.surfaces.web.api import ANA, ANSWERER, bearing, problem
from tests.surfaces.web.bodies import mutations, worst_payloads
from tests.surfaces.web.conftest import MakeApi
from tests.surfaces.web.server import served

LARGEST = 64 * 1024
MUTATIONS = 600
REFUSALS = {400, 401, 403, 404, 409, 410, 413, 422}


@pytest.mark.parametrize(
    ("payload", "status", "reason", "words"),
    [("[" + ",".join(["1e308"] * 1_000) + "]", 413, "size", "bytes are more than max_payload (65,536)"),
     ("[" + ",".join(["[]"] * 8_192) + "]", 413, "size", "8,193 values are more than 8,192 (max_payload / 8)"),
     ("[1e309]", 422, "field", "1e309 is out of range"), ("1" * 1_001, 422, "field", "more than 1,000 digits"),
     ('[{"paid": true, "paid": false}]', 422, "field", "contains 'paid' twice"),
     ('["\\u0000"]', 422, "field", "a NUL character")],
)  # fmt: skip
async def test_a_reply_beyond_the_bounds_is_refused_with_the_bound(
    make_api: MakeApi, payload: str, status: int, reason: str, words: str
) -> None:
    api = await make_api(max_payload=LARGEST)
    question = await api.ask()
    before = await snapshot(api.h)

    body = f'{{"interactionId": "{question.id}", "responsePayload": {payload}}}'
    answer = await api.client.post(
        "/interactions/complete", content=body, headers={**bearing(ANA), "Content-Type": "application/json"}
    )

    assert problem(answer)[:2] == (status, reason)
    assert answer.json()["field"].startswith("responsePayload")
    assert words in answer.json()["detail"]
    assert await snapshot(api.h) == before


async def test_no_worst_body_is_a_server_error_or_read_completely(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await make_api(max_payload=LARGEST, rate=None)
    question = await api.ask()
    containers: list[float] = []
    scan = codec.check_json

    def counting(root: object, *others: Any, most: float = float("inf"), **options: Any) -> None:
        containers.append(min(most, len(root) if isinstance(root, list) else 1))
        scan(root, *others, most=most, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "check_json", counting)
    before = await snapshot(api.h)
    async with served(api.app, lifespan="off") as address:
        bodies = [f'{{"interactionId": "{question.id}", "responsePayload": {payload}}}'.encode()
                  for _, payload in worst_payloads(LARGEST, LARGEST // 8)]  # fmt: skip
        answers = await asyncio.to_thread(post_all, address, bodies, ANA)

    assert {status for status, _ in answers} <= {400, 413, 422}
    assert await snapshot(api.h) == before
    assert max(containers, default=0) <= codec._MOST_SCANNED


async def test_no_mutated_body_is_a_server_error_or_changes_a_row_unadmitted(make_api: MakeApi) -> None:
    api = await make_api(rate=None)
    questions = [await api.ask(token=True) for _ in range(3)]
    tokens = [await api.h.engine.interactions.token(question.id) for question in questions]
    reply = {"approved": True, "note": "a,b\\"}
    goods = [{"interactionId": question.id, "resumeToken": token, "responsePayload": reply, "actor": None}
             for question, token in zip(questions, tokens, strict=True)]  # fmt: skip
    admitted = 0

    async with served(api.app, lifespan="off") as address:
        for number, (good, secret) in enumerate(zip(goods, [None, ANA, ANSWERER], strict=True)):
            before = await snapshot(api.h)
            answers = await asyncio.to_thread(post_all, address, list(mutations(good, MUTATIONS // 3, number)), secret)
            taken = [status for status, _ in answers if status == 200]
            admitted += len(taken)
            assert {status for status, _ in answers} <= {200, *REFUSALS}
            assert (await snapshot(api.h) == before) is (not taken)

    assert admitted  # some changes are to spaces


def post_all(address: str, bodies: list[bytes], secret: str | None) -> list[tuple[int, dict[str, Any]]]:
    """Post bodies over one connection after the other; the statuses and bodies of the responses."""
    answers = []
    for body in bodies:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        connection.request("POST", "/interactions/complete", body,
                           {**bearing(secret), "Content-Type": "application/json"})  # fmt: skip
        response = connection.getresponse()
        answers.append((response.status, json.loads(response.read())))
        connection.close()
    return answers
