"""Pipelines with outputs made of the request and of what the external system knows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from stepwell.pipelines import Answered, Pipeline, await_, many_to_one, one_to_many


@dataclass
class Order:
    number: int
    cents: int


@dataclass
class Decision:
    is_approved: bool
    note: str = ""


@dataclass
class Approval:
    number: int
    cents: int
    is_approved: bool
    by: str
    interaction_id: str


projected: list[int] = []  # the orders it was called for


def approve(order: Order, decision: Decision, answered: Answered) -> Approval:
    """The output that the pipeline continues with: the order's own facts, and the decision."""
    projected.append(order.number)
    if decision.note == "nobody":
        raise PermissionError("nobody may say so")
    return Approval(order.number, order.cents, decision.is_approved, answered.actor or "", answered.interaction_id)


def approve_many(orders: list[Order], decisions: list[Decision], answered: Answered) -> list[Approval]:
    return [approve(order, decision, answered) for order, decision in zip(orders, decisions, strict=True)]


@one_to_many
async def orders(upto: int) -> AsyncIterator[Order]:
    for number in range(upto):
        yield Order(number, 100 * number)


@many_to_one
async def summary(approvals: AsyncIterator[Approval]) -> list[list[object]]:
    return [[a.number, a.cents, a.is_approved, a.by] async for a in approvals]


asked = await_("Ask boss", over="manual", input=Order, output=Approval, completion=Decision, projector=approve)
lone = Pipeline("lone approval", [asked])
each = Pipeline("approvals", [orders, asked, summary])
together = Pipeline(
    "joint approval",
    [orders, await_("Ask board", over="manual", input=Order, output=Approval, cardinality="MANY_TO_MANY",
                    completion=list[Decision], projector=approve_many), summary],
)  # fmt: skip
