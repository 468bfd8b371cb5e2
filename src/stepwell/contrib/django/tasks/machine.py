"""The one machine that runs all of Django's tasks."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from stepwell.context import Context
from stepwell.contrib.django.tasks.api import normalize_json, task_finished, task_started
from stepwell.contrib.django.tasks.runs import Run
from stepwell.contrib.django.tasks.state import TaskState
from stepwell.machine import Machine, step
from stepwell.outcomes import Outcome


class DjangoTask(Machine, name="django.task", initial="run", state=TaskState):
    """Looks a task up by its path and calls it. If it cannot be found, the task fails."""

    @step
    def run(self, ctx: Context[TaskState]) -> Outcome:
        """A plain task, in a thread."""
        run = Run(ctx)
        task_started.send_robust(run.sender, task_result=run.result)
        try:
            outcome = run.succeed(normalize_json(run.task.func(*run.args, **run.kwargs)))
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            outcome = run.fail(error)
            if run.result.is_finished:
                task_finished.send_robust(run.sender, task_result=run.result)  # here: receivers may log the exception
        else:
            task_finished.send_robust(run.sender, task_result=run.result)
        return outcome

    @step
    async def run_async(self, ctx: Context[TaskState]) -> Outcome:
        """A coroutine, in the worker's loop."""
        run = Run(ctx)
        await _close_old_connections()
        await task_started.asend_robust(run.sender, task_result=run.result)
        try:
            outcome = run.succeed(normalize_json(await run.task.func(*run.args, **run.kwargs)))
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            outcome = run.fail(error)
            if run.result.is_finished:
                await task_finished.asend_robust(run.sender, task_result=run.result)
        else:
            await task_finished.asend_robust(run.sender, task_result=run.result)
        await _close_old_connections()
        return outcome


# Async code reaches the database through one thread that Django keeps for it; nothing else cleans its connections.
_close_old_connections = sync_to_async(close_old_connections)
