"""examples/crashes: the planted bug is found, and its fixed twin passes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from stepwell.testing import explore_crashes

ADVICE = (
    "effect charge(order=42, amount=100): HastyCheckout.pay runs again when its worker dies before the commit, so its "
    'effects must be repeatable. Give the external system a key that stays the same (f"{ctx.id}:{ctx.step}"), or, if '
    "the effect is a row in this database, make the step transactional."
)
APP = Path(__file__).parents[3] / "examples" / "crashes" / "app.py"


@pytest.fixture(scope="module")
def app() -> ModuleType:
    spec = importlib.util.spec_from_file_location("crashes_app", APP)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["crashes_app"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_hasty_checkout_charges_twice_if_killed_before_pay_commits(app: ModuleType) -> None:
    with pytest.raises(AssertionError) as found:
        await explore_crashes(app.scenario_of(app.HastyCheckout), machines=[app.HastyCheckout])

    assert str(found.value).splitlines() == [
        "3 commits, 6 crashes: 1 came out differently",
        "",
        "commit                            crash   what                                 expected  came",
        "--------------------------------  ------  -----------------------------------  --------  -----",
        "2. HastyCheckout.pay → next ship  before  effect charge(order=42, amount=100)  once      twice",
        "",
        ADVICE,
    ]


async def test_the_fixed_checkout_has_the_same_result_after_every_crash(app: ModuleType) -> None:
    report = await explore_crashes(app.scenario_of(app.Checkout), machines=[app.Checkout])

    assert str(report) == "3 commits, 6 crashes: every one came out as without a crash"
