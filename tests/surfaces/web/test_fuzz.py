"""The OpenAPI document and the API agree: whatever a fuzzer sends, no response is a server error or undocumented."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import requests
import schemathesis
import schemathesis.specs.openapi.schemas  # not in the fuzzing thread: docs/internals/races.md, `ast.parse`
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.surfaces.web.api import ACME, ANA, ANSWERER, READER, Expense
from tests.surfaces.web.conftest import MakeApi
from tests.surfaces.web.server import served

EXAMPLES = 45  # of each operation, fitting its description and not
SECRETS = [None, ANA, READER, ANSWERER, ACME, f"{ANA}x"]
REPLIES = st.one_of(
    st.fixed_dictionaries({"approved": st.booleans()}, optional={"note": st.text(max_size=5)}),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
                 | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
                 | st.dictionaries(st.sampled_from(["approved", "note", "\x00", ""]), inner, max_size=3), max_leaves=8),
)  # fmt: skip
CHECKS_THAT_GUESS = ["positive_data_acceptance"]  # a name of the right type may still be unknown, a cursor no cursor


async def test_no_request_gets_a_server_error_or_an_undocumented_response(make_api: MakeApi) -> None:
    api = await make_api(rate=None)
    await api.h.engine.start_many([Expense.child({"hours": 1, "token": number % 3 == 0}) for number in range(6)])
    await api.h.drain()
    names = [
        {"interactionId": question.id, "correlationId": question.correlation_id,
         "resumeToken": await api.h.engine.interactions.token(question.id)}
        for question in (await api.h.engine.interactions.pending()).items
    ]  # fmt: skip

    async with served(api.app, lifespan="off") as address:
        seen = await asyncio.to_thread(fuzz, address, names)

    assert {200, 400, 401, 403, 404, 409, 422} <= seen


def fuzz(address: str, names: list[dict[str, str]]) -> set[int]:
    """Send what the document allows, what it forbids, and completions of real interactions; the statuses of the
    responses."""
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    operations = {operation.definition.raw["operationId"]: operation
                  for operation in (result.ok() for result in schema.get_all_operations())}  # fmt: skip
    seen: set[int] = set()
    with requests.Session() as session:

        def send(case: Case, secret: str | None) -> None:
            headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
            response = case.call_and_validate(session=session, headers=headers, excluded_checks=excluded())
            seen.add(response.status_code)

        for operation in operations.values():
            try_all(operation.as_strategy(GenerationMode.POSITIVE), send)
            if operation.definition.raw["operationId"] != "document":  # which accepts nothing that could be wrong
                try_all(operation.as_strategy(GenerationMode.NEGATIVE), send)
        try_all(answers(operations["complete"], names), send)
    return seen


def try_all(cases: st.SearchStrategy[Case], send: Callable[[Case, str | None], None]) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(case=cases, secret=st.sampled_from(SECRETS))
    def attempt(case: Case, secret: str | None) -> None:
        send(case, secret)

    attempt()


def answers(operation: Any, names: list[dict[str, str]]) -> st.SearchStrategy[Case]:
    """Completions of interactions that exist, each under one of its names, and perhaps under one of another
    interaction."""
    named = st.one_of(
        st.sampled_from([{field: name} for own in names for field, name in own.items()]),
        st.fixed_dictionaries({}, optional={name: st.sampled_from([own[name] for own in names]) for name in names[0]}),
        st.sampled_from(names),
    )
    rest = st.fixed_dictionaries({"responsePayload": REPLIES}, optional={"actor": st.text(max_size=5)})
    bodies = st.builds(lambda given, rest: {**given, **rest}, named, rest)
    return bodies.map(lambda body: operation.Case(body=body, media_type="application/json"))


def excluded() -> list[Any]:
    return [schemathesis.checks.CHECKS.get_one(name) for name in CHECKS_THAT_GUESS]
