"""How transactional steps and jobs are declared, and what `ctx.connection` says where there is none."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Context, DefinitionError, Done, Machine, NotTransactional, SettingError, job, step
from stepwell._core.registry import Registry
from stepwell.config import Settings


def context(*, in_handle: bool = False, connection: Any = None) -> Context[None]:
    return Context(
        id=1, key=None, tenant="", machine="Order", version=1, step="ship", attempt=0, fence=1, state=None,
        _connection=connection, _in_handle=in_handle,
    )  # fmt: skip


def test_a_sync_step_cannot_be_transactional() -> None:
    with pytest.raises(DefinitionError, match="must be `async def`: its connection belongs to the loop"):

        @step(transactional=True)
        def ship(self: Any, ctx: Context[Any]) -> Done:
            return Done()


def test_a_sync_job_cannot_be_transactional() -> None:
    with pytest.raises(DefinitionError, match=r"job pay is transactional and must be `async def`"):

        @job(transactional=True)
        def pay(ctx: Context[Any]) -> None: ...


def test_a_transactional_job_needs_a_context() -> None:
    with pytest.raises(DefinitionError, match="give it a parameter annotated Context"):

        @job(transactional=True)
        async def pay(amount: int) -> None: ...


def test_transactional_must_be_true_or_false() -> None:
    with pytest.raises(DefinitionError, match="transactional must be True or False, not 'yes'"):

        @step(transactional="yes")  # type: ignore[call-overload]
        async def ship(self: Any, ctx: Context[Any]) -> Done: ...


def test_the_registry_knows_whether_any_step_is_transactional() -> None:
    class Plain(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done: ...

    class Mixed(Plain):
        @step(transactional=True)
        async def write(self, ctx: Context[Any]) -> Done: ...

    @job(transactional=True)
    async def pay(ctx: Context[Any]) -> None: ...

    assert [Registry([given]).is_transactional for given in (Plain, Mixed, pay)] == [False, True, True]


def test_a_plain_step_is_told_how_to_get_a_connection() -> None:
    with pytest.raises(NotTransactional, match=r"mark it with @step\(transactional=True\)") as refused:
        _ = context().connection

    assert (refused.value.machine, refused.value.step, refused.value.in_handle) == ("Order", "ship", False)


def test_handle_is_told_that_the_transaction_has_ended() -> None:
    with pytest.raises(NotTransactional, match="`handle` of Order has no connection: it runs outside"):
        _ = context(in_handle=True).connection


def test_a_connection_is_passed_unchanged() -> None:
    handed = object()

    assert context(connection=handed).connection is handed


@pytest.mark.parametrize(("name", "value"), [("transactional_pool", 0), ("transactional_session", "psycopg")])
def test_a_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        Settings(**{name: value})
