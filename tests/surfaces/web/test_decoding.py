"""H2: how often a reply is decoded, and where: long decoding is done in a thread. Counted, and not timed."""

from __future__ import annotations

import asyncio
import json
import threading
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from stepwell import Ask, Context, Done, Machine, step
from stepwell._client.completions.offload import LARGE
from stepwell._core.serialization import reply_type
from stepwell._core.serialization.reply_type import Projected
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.web.api import KEYS, Api, problem

MARK = 0.8125
MANY = 6_000  # of them are more than LARGE
MIDDLING = 400
SMALL = 5


class Line(BaseModel):
    a: float


class Lines(BaseModel):
    xs: list[float]


def same(request: Any, facts: Any, answered: Any) -> Any:
    return facts


KINDS: dict[str, Any] = {
    "untyped": Any, "typed": list[float], "models": list[Line], "model": Lines,
    "projected": Projected(dict[str, Any], Any, same, Any),
}  # fmt: skip


class Asks(Machine):
    """Asks for what its state names."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Ask:
        return Ask("manual", {}, reply=KINDS[ctx.state["kind"]], then=self.end)

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Done:
        return Done()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How replies were decoded, and where."""
    seen: list[tuple[str, str]] = []
    loop = threading.get_ident()

    def counted(how: str, work: Any, at: int) -> Any:
        def counting(*given: Any, **options: Any) -> Any:
            text = given[at] if isinstance(given[at], str) else bytes(given[at]).decode()
            if str(MARK) in text:
                seen.append((how, "in the loop" if threading.get_ident() == loop else "beside it"))
            return work(*given, **options)

        return counting

    monkeypatch.setattr(json.JSONDecoder, "decode", counted("by Python", json.JSONDecoder.decode, 1))
    monkeypatch.setattr(msgspec.json, "decode", counted("as anything", msgspec.json.decode, 0))
    monkeypatch.setattr(reply_type, "read", counted("as its type", reply_type.read, 1))
    return seen


async def ask(h: Harness, kind: str) -> str:
    """An interaction that wants a reply of this kind."""
    run = await h.engine.start(Asks, {"kind": kind})
    await h.drain()
    questions = (await h.engine.interactions.pending(limit=500)).items
    return next(question.id for question in questions if question.instance_id == run.id)


@pytest.mark.parametrize("token", ["nonsense", "sw1.2026-11.W10.abc", "sw1.gone.W10.abc", "another question's"])
@pytest.mark.parametrize("named", [False, True])
async def test_a_reply_without_credentials_is_not_decoded(
    api: Api, decoded: list[tuple[str, str]], token: str, named: bool
) -> None:
    question, other = await api.ask(token=True), await api.ask(token=True)
    sent = await api.h.engine.interactions.token(other.id) if token == "another question's" else token  # noqa: S105
    name = {"interactionId": question.id} if named or sent != token else {}

    refused = await api.refused(None, **name, resumeToken=sent, responsePayload={"approved": True, "note": f"{MARK}"})

    assert problem(refused) == (401, "token", "resumeToken")
    assert decoded == []


@pytest.mark.parametrize(
    ("kind", "reply", "expected"),
    [("untyped", [MARK] * SMALL, [("by Python", "in the loop")]),
     ("untyped", [MARK] * MANY, [("by Python", "beside it")]),
     ("typed", [MARK] * SMALL, [("by Python", "in the loop"), ("as its type", "in the loop")]),
     ("typed", [MARK] * MANY, [("by Python", "beside it"), ("as its type", "beside it")]),
     ("models", [{"a": MARK}] * MANY, [("by Python", "beside it"), ("as its type", "beside it")]),
     ("projected", [MARK] * MANY,
      [("by Python", "beside it"), ("as anything", "beside it"), ("by Python", "beside it")])],
    ids=["small", "large", "small and typed", "large and typed", "models", "projected"],
)  # fmt: skip
async def test_a_reply_is_decoded_once_and_in_a_thread_if_it_is_large(
    make_harness: MakeHarness, decoded: list[tuple[str, str]], kind: str, reply: Any, expected: list[tuple[str, str]]
) -> None:
    """The last one of a projected reply shows whether the projector's result is plain JSON."""
    api = Api(await make_harness([Asks], token_keys=KEYS))
    question = await ask(api.h, kind)

    answered = await api.complete(interactionId=question, responsePayload=reply)
    seen = list(decoded)
    await api.client.aclose()

    assert answered.status_code == 200
    assert seen == expected
    assert (await api.h.engine.interactions.get(question)).reply == reply


async def test_a_model_of_too_many_values_is_refused_and_a_list_of_models_is_not(
    make_harness: MakeHarness,
) -> None:
    api = Api(await make_harness([Asks], token_keys=KEYS))
    model, models = await ask(api.h, "model"), await ask(api.h, "models")

    refused = await api.refused(interactionId=model, responsePayload={"xs": [MARK] * 12_000})
    taken = [await api.complete(interactionId=model, responsePayload={"xs": [MARK] * 11_000}),
             await api.complete(interactionId=models, responsePayload=[{"a": MARK}] * 9_000)]  # fmt: skip
    await api.client.aclose()

    assert problem(refused)[:2] == (422, "type")
    assert "12,002 values are more than a pydantic model may have in a reply (12,000)" in refused.json()["detail"]
    assert [answer.status_code for answer in taken] == [200, 200]


async def test_concurrent_replies_leave_the_loop_turns_for_other_tasks(
    make_harness: MakeHarness, decoded: list[tuple[str, str]]
) -> None:
    h = await make_harness([Asks])
    questions = [await ask(h, "typed") for _ in range(40)]
    reply = [MARK] * MIDDLING
    turns = [0]

    async def watch() -> None:
        while True:
            turns.append(len(decoded))
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(h.engine.complete(interaction=question, reply=reply) for question in questions))
    watching.cancel()

    between = [after - before for before, after in pairwise(turns)]
    assert turns[-1] >= len(questions)
    assert max(between) <= LARGE // len(json.dumps(reply, separators=(",", ":"))) + 1
