"""An expense that a person approves: by command line or over HTTP, with a reminder, and an escalation to a group."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta

from stepwell import Ask, Context, Done, Engine, Machine, Outcome, step

log = logging.getLogger("approval")

PATIENCE = timedelta(seconds=float(os.environ.get("APPROVAL_PATIENCE", "86400")))  # a day, or shorter to try it out

NEEDS_NOBODY = 50  # an expense up to this is approved without a person


@dataclass
class Decision:
    approved: bool
    note: str = ""


class Expense(Machine):
    @dataclass
    class State:
        employee: str
        amount: int
        approver: str
        reminders: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        """Ask the approver; small amounts are approved by the rules."""
        if ctx.state.amount <= NEEDS_NOBODY:
            return Done({"approved": True, "by": "the rules"})
        return Ask(
            "manual", {"employee": ctx.state.employee, "amount": ctx.state.amount}, reply=Decision, then=self.decided,
            timeout=PATIENCE, assignee=ctx.state.approver,
        )  # fmt: skip

    @step
    async def decided(self, ctx: Context[State]) -> Outcome:
        """Take the decision; remind once; then let anyone of the group decide."""
        if ctx.reply.is_completed:
            return Done({"approved": ctx.reply.value.approved, "by": ctx.reply.actor, "note": ctx.reply.value.note})
        asked = {"employee": ctx.state.employee, "amount": ctx.state.amount}
        if not ctx.state.reminders:
            ctx.state.reminders += 1
            log.info("reminding %s of the expense of %s", ctx.state.approver, ctx.state.employee)
            return Ask(
                "manual", {**asked, "reminder": True}, reply=Decision, then=self.decided, timeout=PATIENCE,
                assignee=ctx.state.approver,
            )  # fmt: skip
        log.info("%s does not reply; anyone of finance may decide", ctx.state.approver)
        return Ask("manual", {**asked, "escalated": True}, reply=Decision, then=self.decided, group="finance")


engine = Engine(machines=[Expense])
