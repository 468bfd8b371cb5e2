"""examples/checkout: the commands of its README, run, in processes that really die."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.conftest import MakeHarness
from tests.surfaces.cli.processes import running, stepwell

FOLDER = str(Path(__file__).parents[3] / "examples" / "checkout")
BY_KEY = ("--key", "order:42")
PAYMENT = ("signal", *BY_KEY, "payment_confirmed", '{"amount": 100}', "--dedup-key", "evt-7")


async def test_a_parked_checkout_outlives_its_worker_and_is_shipped_by_a_new_one(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness()

    async with running("worker", "app:engine", url=h.url, cwd=FOLDER) as first:
        await first.line()
        await stepwell("start", "app:engine", "Checkout", '{"order": 42}', *BY_KEY, url=h.url, cwd=FOLDER)
        parked = await stepwell("wait", *BY_KEY, "--until", "settled", "--timeout", "30", url=h.url)
        first.send(signal.SIGKILL)
        await first.ended()
    shown = await stepwell("show", *BY_KEY, url=h.url)
    sent = [await stepwell(*PAYMENT, url=h.url), await stepwell(*PAYMENT, url=h.url)]
    paid = await stepwell("tree", *BY_KEY, url=h.url)
    async with running("worker", "app:engine", url=h.url, cwd=FOLDER):
        shipped = await stepwell("wait", *BY_KEY, "--timeout", "30", url=h.url)

    assert parked.code == 0
    assert "waits for  signal 'payment_confirmed', for 5" in shown.out
    assert [signalled.code for signalled in sent] == [0, 0]
    assert "runnable at ship" in paid.out
    assert (shipped.code, shipped.json) == (0, {"order": 42, "paid": {"amount": 100}})


def test_the_readme_says_what_this_test_types() -> None:
    readme = (Path(FOLDER) / "README.md").read_text()

    for command in (
        "stepwell worker app:engine &", "stepwell start app:engine Checkout '{\"order\": 42}' --key order:42",
        "stepwell wait --key order:42 --until settled", "kill -9 $!", "stepwell show --key order:42",
        "stepwell signal --key order:42 payment_confirmed '{\"amount\": 100}' --dedup-key evt-7",
        "stepwell tree --key order:42", "stepwell wait --key order:42 --timeout 30",
    ):  # fmt: skip
        assert command in readme
