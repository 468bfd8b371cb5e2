"""Which callers get through, how often, and how the completions API is built, mounted and served."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import timedelta
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from stepwell import Engine, InvalidInput
from stepwell._store.connection.sql_files import statement
from stepwell.contrib.starlette import lifespan
from stepwell.web import BearerToken, Rate, completions
from tests.conftest import MakeHarness
from tests.support.proxy import proxy_to
from tests.surfaces.web.api import ANA, ANSWERER, KEYS, READER, TOKENS, Api, Expense, bearing, problem
from tests.surfaces.web.conftest import MakeApi
from tests.surfaces.web.server import served

YES = {"approved": True}


async def test_an_unknown_caller_is_refused_everywhere(api: Api) -> None:
    question = await api.ask()
    headers: list[Any] = [
        {}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": f"Basic {ANA}"},
        {"Authorization": f"Bearer {ANA}x"}, {"Authorization": f"Bearer {ANA} {ANA}"}, {"Authorization": ANA},
        [("Authorization", f"Bearer {ANA}"), ("Authorization", f"Bearer {READER}")],
    ]  # fmt: skip

    for given in headers:
        answers = [
            await api.client.post("/interactions/complete", headers=given,
                                   json={"interactionId": question.id, "responsePayload": YES}),
            await api.client.get("/interactions/pending", headers=given),
            await api.client.get(f"/interactions/{question.id}", headers=given),
        ]  # fmt: skip
        assert [problem(answer) for answer in answers] == [(401, "credentials", None)] * 3
        assert [answer.headers["www-authenticate"] for answer in answers] == ["Bearer"] * 3

    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_the_word_bearer_is_read_in_any_case(api: Api) -> None:
    answer = await api.client.get("/interactions/pending", headers={"Authorization": f"bEARER  {ANA}"})

    assert answer.status_code == 200


async def test_a_caller_does_only_what_its_scopes_allow(api: Api) -> None:
    question = await api.ask()

    answers = [
        await api.complete(READER, interactionId=question.id, responsePayload=YES),
        await api.get("/interactions/pending", ANSWERER),
        await api.get(f"/interactions/{question.id}", ANSWERER),
    ]

    assert [problem(answer) for answer in answers] == [(403, "scope", None)] * 3
    assert answers[0].headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="complete"'
    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_wrong_credentials_are_refused_whatever_token_the_body_has(api: Api) -> None:
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)

    answer = await api.complete(f"{ANA}x", resumeToken=token, responsePayload=YES)

    assert problem(answer)[:2] == (401, "credentials")


async def test_without_resume_tokens_every_caller_needs_credentials(make_api: MakeApi) -> None:
    api = await make_api(allow_resume_tokens=False)
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)

    unknown = await api.complete(None, resumeToken=token, responsePayload=YES)
    known = await api.complete(ANSWERER, resumeToken=token, responsePayload=YES)

    assert problem(unknown) == (401, "credentials", None)
    assert known.status_code == 200


async def test_a_client_that_calls_too_often_is_told_when_to_retry(make_api: MakeApi) -> None:
    api = await make_api(rate=Rate(2, per=timedelta(hours=1)))

    anonymous = [(await api.get("/interactions/pending", None)).status_code for _ in range(3)]
    wrong = await api.get("/interactions/pending", f"{ANA}x")
    anas = [await api.get("/interactions/pending", ANA) for _ in range(3)]
    readers = await api.get("/openapi.json", READER)

    assert anonymous == [401, 401, 429]
    assert problem(wrong) == (429, "rate", None)
    assert [answer.status_code for answer in anas] == [200, 200, 429]
    assert 1_700 <= int(anas[2].headers["retry-after"]) <= 1_800
    assert readers.status_code == 200


async def test_without_a_rate_no_client_is_limited(make_api: MakeApi) -> None:
    api = await make_api(rate=None)

    answers = [await api.get("/interactions/pending", None) for _ in range(300)]

    assert {answer.status_code for answer in answers} == {401}


async def test_an_unknown_path_or_method_is_a_problem_document(api: Api) -> None:
    path = await api.get("/interactions")
    slash = await api.get("/interactions/pending/")
    method = await api.client.request("DELETE", "/interactions/complete", headers=bearing(ANA))

    assert [problem(path), problem(slash)] == [(404, "path", None)] * 2
    assert problem(method) == (405, "method", None)
    assert method.headers["allow"] == "POST"


async def test_no_response_may_be_cached(api: Api) -> None:
    for path in ("/interactions/pending", "/openapi.json", "/nowhere"):
        assert (await api.get(path)).headers["cache-control"] == "no-store"


async def test_a_lost_database_is_503_and_the_repeated_completion_is_a_duplicate(api: Api) -> None:
    question = await api.ask()
    body = {"interactionId": question.id, "responsePayload": YES}

    async with proxy_to(api.h.url) as proxy, Engine(proxy.url, machines=[Expense]) as engine:
        app = completions(engine, tokens=TOKENS)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
            proxy.lose("answer", statement("interactions/complete_fast"))
            lost = await client.post("/interactions/complete", json=body, headers=bearing(ANA))
            again = await client.post("/interactions/complete", json=body, headers=bearing(ANA))

    assert problem(lost) == (503, "unavailable", None)
    assert int(lost.headers["retry-after"]) >= 1
    assert "postgres" not in lost.text.lower()
    assert (again.status_code, again.json()["duplicate"]) == (200, True)


async def test_an_engine_that_is_not_open_is_503(make_harness: MakeHarness) -> None:
    engine = (await make_harness([Expense])).another_engine()
    app = completions(engine, tokens=TOKENS)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://door") as client:
        answer = await client.get("/interactions/pending", headers=bearing(ANA))

    assert problem(answer) == (503, "unavailable", None)


async def test_an_api_that_no_caller_could_use_is_refused(make_harness: MakeHarness) -> None:
    without_keys, with_keys = await make_harness([Expense]), await make_harness([Expense], token_keys=KEYS)

    for engine, options in ((without_keys.engine, {}), (with_keys.engine, {"allow_resume_tokens": False})):
        with pytest.raises(InvalidInput, match=r"^tokens: no caller could use it"):
            completions(engine, **options)  # type: ignore[arg-type]
    for wrong in ({"max_body": 5}, {"max_body": True}, {"tokens": ["secret"]}):
        with pytest.raises(InvalidInput):
            completions(with_keys.engine, **wrong)  # type: ignore[arg-type]
    assert completions(with_keys.engine)


async def test_the_api_can_be_mounted_in_an_application_that_opens_the_engine(
    make_harness: MakeHarness,
) -> None:
    engine = (await make_harness([Expense])).another_engine()
    app = FastAPI(lifespan=lifespan(engine))
    app.mount("/world", completions(engine, tokens=TOKENS))

    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client,
    ):
        pending = await client.get("/world/interactions/pending", headers=bearing(ANA))
        document = await client.get("/world/openapi.json")

    assert pending.json() == {"interactions": [], "cursor": None}
    assert document.json()["servers"] == [{"url": "/world"}]


async def test_the_api_behind_a_real_server_opens_the_engine_and_completes(api: Api) -> None:
    question = await api.ask()
    app = completions(api.h.another_engine(), tokens=[BearerToken(ANSWERER, scopes={"complete"})])

    async with served(app) as address, httpx.AsyncClient(base_url=address, headers=bearing(ANSWERER)) as client:
        answered = await client.post("/interactions/complete", json={
            "interactionId": question.id, "responsePayload": YES, "actor": "bob"})  # fmt: skip

    assert answered.json()["duplicate"] is False
    assert (await api.h.engine.interactions.get(question.id)).actor == "bob"


async def test_a_body_without_an_end_gets_a_response_and_is_cut_off(make_api: MakeApi) -> None:
    api = await make_api(max_body=2_000)
    head = f"POST /interactions/complete HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ANA}\r\n"
    media = "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"

    async with served(api.app, lifespan="off", timeout_keep_alive=600) as address, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
        writer.write((head + media).encode() + b"3e8\r\n%s\r\n" % (b" " * 1_000) * 3)  # and more would follow
        answer = await reader.read()  # up to the end of the connection, which the server makes
        writer.close()

    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"urn:stepwell:problem:size" in answer


def test_without_starlette_the_import_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['starlette'] = None; import stepwell.web"

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "stepwell.errors.MissingExtra: stepwell.web needs a package that is not installed; "
        "run: pip install 'stepwell[web]'"
    )


@pytest.mark.parametrize(("trusted", "statuses"), [
    ("127.0.0.1", {401}), ("192.0.2.1", {401, 429}), ("", {401, 429}),
], ids=["a server that trusts its clients", "a server that trusts a proxy", "a server that trusts nobody"])  # fmt: skip
async def test_only_a_server_that_trusts_its_clients_reads_forwarded_addresses(
    make_api: MakeApi, trusted: str, statuses: set[int]
) -> None:
    api = await make_api(rate=Rate(5, per=timedelta(hours=1)))

    async with served(api.app, forwarded_allow_ips=trusted) as address, httpx.AsyncClient(base_url=address) as client:
        answers = [
            await client.get("/interactions/pending", headers={"X-Forwarded-For": f"198.51.100.{number}"})
            for number in range(10)
        ]

    assert {answer.status_code for answer in answers} == statuses


async def test_addresses_left_of_the_proxys_own_do_not_count(make_api: MakeApi) -> None:
    api = await make_api(rate=Rate(5, per=timedelta(hours=1)))

    async with served(api.app) as address, httpx.AsyncClient(base_url=address) as client:  # trusts 127.0.0.1
        answers = [
            await client.get("/interactions/pending", headers={"X-Forwarded-For": f"198.51.100.{number}, 203.0.113.9"})
            for number in range(10)
        ]

    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 5
