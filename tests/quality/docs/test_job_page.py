"""`docs/internals/a-job-step-by-step.md` names the functions that a job passes: all of them, and in their order."""

from __future__ import annotations

import asyncio
import re

from stepwell import job
from stepwell.testing import Harness
from tests.quality.docs.pages import ROOT
from tests.quality.job_path import Trace
from tests.support.waiting import eventually

PAGE = ROOT / "docs" / "internals" / "a-job-step-by-step.md"
LINE = re.compile(r"- `(?P<function>[^`]+)`(?: \(`(?P<module>[^`]+)`\))? \S.*")
ANY_ORDER = {"Every statement", "Every service"}  # what all sections use
SOMETIMES = {  # other work may share the moment: a notification of this process comes back, an error is forgotten
    ("_notify/notifier.py", "_Listener._hear"), ("_store/connection/driver_errors.py", "translated"),
}  # fmt: skip
RUNS = 12
WATCHED = "select from stepwell.instances where id = $1 and watched"

Function = tuple[str, str]


class CallTrace(Trace):
    """Every call, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Function] = []

    def _enter(self, function: Function) -> None:
        super()._enter(function)
        self.calls.append(function)


def sections() -> dict[str, list[Function]]:
    """The functions of each section, with their modules."""
    found: dict[str, list[Function]] = {}
    for part in PAGE.read_text().split("\n## ")[1:]:
        title, _, body = part.partition("\n")
        module, lines = "", found.setdefault(title, [])
        for line in body.splitlines():
            if not line:
                continue
            match = LINE.fullmatch(line)
            assert match, f"{title}: {line!r} is not of the form \"- `function` (`module`) what it does\""
            module = match["module"] or module
            lines.append((module, match["function"]))
    return found


async def traces() -> list[list[Function]]:
    """The calls of several runs: the client waits before the job ends."""
    gate = asyncio.Event()

    @job
    async def greet(name: str) -> str:
        await gate.wait()
        return f"hello {name}"

    taken = []
    async with Harness([greet]) as h, h.engine.worker():
        for _ in range(RUNS):
            gate.clear()
            with CallTrace() as trace:
                handle = await h.engine.start(greet, {"name": "ana"})
                waiting = asyncio.create_task(handle.result())
                await eventually(lambda: h.sql(WATCHED, handle.id))  # noqa: B023 - awaited here
                gate.set()
                assert await waiting == "hello ana"
            taken.append([one for one in trace.calls if not one[0].startswith("_store/testing/")])
    return taken[RUNS // 2 :]


async def test_the_page_has_every_function_that_a_job_passes() -> None:
    named = {one for functions in sections().values() for one in functions}
    passed = [set(trace) for trace in await traces()]

    assert set.intersection(*passed) - named - SOMETIMES == set(), "these are missing on the page"
    assert named - set.union(*passed) == set(), "the page names these, and no job passes them"


async def test_each_section_of_the_page_is_in_the_order_of_the_calls() -> None:
    """Beside the job, services call some of the functions too, so each is looked for after the one before it."""
    for calls in await traces():
        for title, functions in sections().items():
            rest = iter(calls)
            late = [function for function in functions if title not in ANY_ORDER and function not in rest]
            assert late == [], title


def test_no_function_of_the_page_is_named_twice() -> None:
    named = [one for functions in sections().values() for one in functions]

    assert [one for one in named if named.count(one) > 1] == []
