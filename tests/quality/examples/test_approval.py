"""examples/approval: the commands of its README, run; and what happens without a reply."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.cli.processes import running, stepwell

FOLDER = Path(__file__).parents[3] / "examples" / "approval"
README = (FOLDER / "README.md").read_text()
EXPENSE = '{"employee": "bo", "amount": 120, "approver": "ana"}'
REPLY = '{"approved": true, "note": "fine"}'
BY_KEY = ("--key", "expense:1")
TOKEN = "0123456789abcdef" * 4
DAY = timedelta(days=1)


def load_app() -> Any:
    """The example's app as a module of its own, since other examples have one of the same name."""
    spec = importlib.util.spec_from_file_location("approval_app", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["approval_app"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_an_expense_approved_while_no_worker_runs_is_paid_by_the_next_one(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness()
    cwd = str(FOLDER)

    async with running("worker", "app:engine", url=h.url, cwd=cwd) as first:
        await first.line()
        await stepwell("start", "app:engine", "Expense", EXPENSE, *BY_KEY, url=h.url, cwd=cwd)
        await stepwell("wait", *BY_KEY, "--until", "settled", "--timeout", "30", url=h.url)
        await first.kill()
    listed = await stepwell("interactions", "--assignee", "ana", "--json", url=h.url)
    [question] = [json.loads(line) for line in listed.out.splitlines()]
    answered = await stepwell("complete", question["id"], "--reply", REPLY, "--actor", "ana", url=h.url)
    async with running("worker", "app:engine", url=h.url, cwd=cwd):
        paid = await stepwell("wait", *BY_KEY, "--timeout", "30", url=h.url)

    assert question["request"] == {"employee": "bo", "amount": 120}
    assert (answered.code, paid.json) == (0, {"approved": True, "by": "ana", "note": "fine"})


async def test_an_unanswered_expense_reminds_once_then_finance_decides_over_http(make_harness: MakeHarness) -> None:
    app = load_app()
    h = await make_harness([app.Expense])
    expense = await h.engine.start(app.Expense, {"employee": "bo", "amount": 120, "approver": "ana"}, key="expense:1")
    asked = []

    for _ in range(2):
        asked.append(await waits_as(h, len(asked)))
        await h.advance(DAY)
    escalated = await waits_as(h, 2)
    server = await create_subprocess_exec(
        sys.executable, "-m", "uvicorn", "web:app", "--port", "0", cwd=FOLDER, stderr=PIPE,
        env={"STEPWELL_DATABASE_URL": h.url, "ANAS_TOKEN": TOKEN, "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    try:
        listed, answered = await answer_over_http(await address_of(server), escalated.id)
    finally:
        server.terminate()
        await server.communicate()
    async with h.engine.worker():
        result = await expense.result(30)

    assert [(a.assignee, a.group, sorted(a.request)) for a in [*asked, escalated]] == [
        ("ana", None, ["amount", "employee"]), ("ana", None, ["amount", "employee", "reminder"]),
        (None, "finance", ["amount", "employee", "escalated"]),
    ]  # fmt: skip
    assert [question["interactionId"] for question in listed.json()["interactions"]] == [escalated.id]
    assert answered.status_code == 200
    assert result == {"approved": True, "by": "ana", "note": ""}


async def waits_as(h: Any, number: int) -> Any:
    """Run a worker until this number of interactions has ended; returns the open one."""

    async def is_there() -> bool:
        [row] = await h.sql("select count(*) filter (where status = 'dispatched') as open, count(*) as all "
                            "from stepwell.interactions")  # fmt: skip
        return bool(row["open"] == 1 and row["all"] == number + 1)

    async with h.engine.worker():
        await eventually(is_there)
        await h.engine.wait("expense:1", until="settled", timeout=30)
    [question] = (await h.engine.interactions.pending()).items
    return question


async def address_of(server: Any) -> str:
    while line := (await server.stderr.readline()).decode():
        if found := re.search(r"running on (http://\S+)", line):
            return found[1]
    raise AssertionError("it did not start")


async def answer_over_http(address: str, question: str) -> tuple[httpx.Response, httpx.Response]:
    async with httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {TOKEN}"}) as ana:
        listed = await ana.get("/interactions/pending", params={"group": "finance"})
        body = {"interactionId": question, "responsePayload": {"approved": True}}
        return listed, await ana.post("/interactions/complete", json=body)


def test_the_readme_says_what_these_tests_type() -> None:
    typed = [
        f"stepwell start app:engine Expense '{EXPENSE}' --key expense:1", "stepwell interactions --assignee ana",
        f"stepwell complete ID --reply '{REPLY}' --actor ana", "stepwell wait --key expense:1 --timeout 30",
        "uvicorn web:app", "/interactions/pending?", "/interactions/complete", '{"interactionId": "ID"',
    ]  # fmt: skip

    assert [command for command in typed if command not in README] == []
