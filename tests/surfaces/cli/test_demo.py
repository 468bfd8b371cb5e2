"""`stepwell demo`: it shows durability in a minute, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import embedded
from tests.surfaces.cli.processes import running, stepwell

pytestmark = pytest.mark.skipif(not embedded.installed(), reason="the demo needs the embedded Postgres")

STORY = (
    "reserve begins", "worker A dies in the middle of reserve", "reserve begins again (attempt 1)",
    "reserve is committed", "it waits for signal 'payment_confirmed'", "worker B dies while the order is parked",
    "The payment arrives", "$ stepwell signal --key order:42 payment_confirmed", "runnable at ship",
    "The provider sends the same event again", "Worker C is ready", "ship is committed: done, with one payment",
    "Next: docs/tutorial.md", "make test",
)  # fmt: skip


class Place:
    """A home for clusters and temporary files, that only the demo of one test uses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.env = {"STEPWELL_DATA_HOME": str(path), "TMPDIR": str(path)}

    def leftovers(self) -> list[str]:
        """Folders and processes of a demo; the copy of Postgres' programs is meant to stay."""
        folders = [entry.name for entry in self.path.iterdir() if not entry.name.startswith("programs-")]
        return folders + [str(pid) for pid in _pids() if self._concerns(pid)]

    def _concerns(self, pid: int) -> bool:
        """Whether a process runs here: postgres has the folder in its arguments, a worker in its environment."""
        try:
            said = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return os.fsencode(self.path) in said


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


@pytest.fixture
def place() -> Iterator[Place]:
    # Not tmp_path: for root the server runs as `nobody`, which cannot enter pytest's folders.
    path = Path(tempfile.mkdtemp(prefix="stepwell-cli-"))
    path.chmod(0o755)
    yield Place(path)
    shutil.rmtree(path)


async def test_the_demo_prints_how_a_checkout_survives_and_leaves_nothing_behind(place: Place) -> None:
    demo = await stepwell("demo", **place.env)

    assert (demo.code, demo.err) == (0, "")
    assert "\x1b" not in demo.out
    assert [line for line in STORY if line not in demo.out] == []
    assert sorted(STORY, key=demo.out.index) == list(STORY)
    assert place.leftovers() == []


async def test_with_json_the_demo_prints_the_facts_in_any_environment(place: Place) -> None:
    demo = await stepwell("demo", "--json", **place.env, STEPWELL_LEASE="nonsense", STEPWELL_DATABASE_URL="nowhere")

    facts = demo.json
    runs = [(run["step"], run["attempt"], run["worker"], run["fate"]) for run in facts["runs"]]
    kills = [(kill["worker"], kill["status"], kill["step"]) for kill in facts["kills"]]
    assert (demo.code, facts["ok"], facts["instance"]["status"]) == (0, True, "done")
    assert runs == [("reserve", 0, "A", "killed"), ("reserve", 1, "B", "committed"), ("ship", 0, "C", "committed")]
    assert kills == [("A", "executing", "reserve"), ("B", "awaiting_signal", "ship")]
    assert len({run["pid"] for run in facts["runs"]} | {sent["pid"] for sent in facts["signals"]}) == 5
    assert facts["instance"]["result"]["payments"] == [{"amount": 100}]


@pytest.mark.parametrize("moment", ["Starting a Postgres", "reserve begins"])  # the second: a worker runs
async def test_an_interrupted_demo_leaves_nothing_behind(place: Place, moment: str) -> None:
    async with running("demo", **place.env) as demo:
        while moment not in await demo.line():
            pass
        demo.send(signal.SIGINT)
        ended = await demo.ended()

    assert ended.code == 128 + signal.SIGINT
    assert ended.err == "stepwell: interrupted; everything is removed\n"
    assert place.leftovers() == []


async def test_a_demo_that_fails_exits_with_1_and_shows_the_log_of_the_worker(place: Place) -> None:
    async with running("demo", **place.env) as demo:
        while "is ready" not in (line := await demo.line()):
            pass
        os.kill(int(line.rsplit(maxsplit=1)[1]), signal.SIGKILL)
        ended = await demo.ended()

    assert ended.code == 1
    assert "started with queues" in ended.err
    assert "the demo failed: worker A exited unexpectedly" in ended.err
    assert place.leftovers() == []
