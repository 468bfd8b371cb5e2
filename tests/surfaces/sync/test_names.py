"""Every public name has its blocking twin, with the same parameters: a new one cannot be forgotten."""

from __future__ import annotations

import inspect

import pytest

from stepwell import Engine, Handle, SyncEngine, SyncHandle
from stepwell._client.admin.insights import Insights
from stepwell._client.admin.interactions import Interactions
from stepwell._client.admin.queues import Queues
from stepwell.sync import SyncInsights, SyncInteractions, SyncQueues

TWINS = [
    (Engine, SyncEngine), (Handle, SyncHandle), (Insights, SyncInsights), (Interactions, SyncInteractions),
    (Queues, SyncQueues),
]  # fmt: skip
ONLY_ASYNC = {"sync", "__aenter__", "__aexit__"}
ONLY_SYNC = {"settings", "__enter__", "__exit__"}  # an Engine sets `settings` when it is made


def _names(kind: type) -> set[str]:
    contexts = {"__aenter__", "__aexit__", "__enter__", "__exit__"}
    named = {name for part in kind.__mro__[:-1] for name in vars(part)}
    return {name for name in named if not name.startswith("_") or name in contexts}


def _parameters(kind: type, name: str) -> list[inspect.Parameter]:
    """What a caller may pass, without annotations, which are the type checkers' to compare."""
    given = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    return [parameter.replace(annotation=inspect.Parameter.empty) for parameter in given]


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_every_public_name_has_a_blocking_twin(kind: type, twin: type) -> None:
    assert _names(kind) - ONLY_ASYNC == _names(twin) - ONLY_SYNC


@pytest.mark.parametrize(("kind", "twin"), TWINS)
def test_a_blocking_twin_takes_the_same_arguments(kind: type, twin: type) -> None:
    methods = [name for name in _names(kind) - ONLY_ASYNC if inspect.isfunction(getattr(kind, name))]

    assert methods
    assert {name: _parameters(twin, name) for name in methods} == {name: _parameters(kind, name) for name in methods}


@pytest.mark.parametrize(("_", "twin"), TWINS)
def test_no_blocking_twin_is_a_coroutine(_: type, twin: type) -> None:
    assert [name for name in _names(twin) if inspect.iscoroutinefunction(getattr(twin, name))] == []
