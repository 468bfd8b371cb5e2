"""Accepts completions: groups them, wakes their instances, and waits for instances that are locked."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from stepwell._client.batching import Batcher
from stepwell._client.completions.call import Call, CallReader
from stepwell._client.completions.interaction_cache import InteractionCache
from stepwell._client.completions.lookup import Lookup
from stepwell._client.completions.offload import LargeTextThread
from stepwell._client.completions.result import Result, result_of
from stepwell._core.interaction import Answer, Completion
from stepwell._core.registry import Registry
from stepwell._core.resume_token import TokenKeys
from stepwell._core.store_errors import Contention, Outage, Refusal
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._store.await_units import Settled
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import retried
from stepwell._store.operations.complete import CompletePaths, Given, complete
from stepwell.config import Settings
from stepwell.errors import CompletionRefused, UnknownInteraction

PAUSES = (0.002, 0.005, 0.01, 0.02)  # seconds, before a completion waits for the lock of its instance
LARGEST_GROUP = 256  # completions that share a lookup and a statement


class CompleteOperations:
    """Accepts completions; concurrent ones share statements."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, settings: Settings, keys: TokenKeys,
        cache: InteractionCache,
    ) -> None:  # fmt: skip
        self._database = database
        self._notifier = notifier
        self._large_texts = LargeTextThread()
        self._reader = CallReader(settings, keys, self._large_texts)
        self._lookup = Lookup(database, registry, cache, self._large_texts, settings.max_payload)
        self._group = Batcher(
            self._complete, lambda call: len(call.text or ""), waits_a_turn=True, largest=LARGEST_GROUP, at_once=2
        )
        self._accepting = asyncio.Lock()  # one group at a time: two would wait for each other's instances
        self._last: asyncio.Future[None] | None = None  # done when the latest group has its results
        self._batchers: dict[int, Batcher[Given, Completion | CompletionRefused]] = {}  # by locked instance
        self._waiting = Counter[int]()  # completions that wait, by instance
        self._paths = CompletePaths()

    def close(self) -> None:
        """Accept no more large replies."""
        self._large_texts.close()

    async def complete(self, completion: Answer) -> Completion:
        """Accept one completion; CompletionRefused if it is refused, which changes nothing."""
        self._database.check_loop()
        call = await self._reader.read(completion)
        result = await self._group.submit(call)
        for pause in PAUSES:  # mostly a completion or the worker locks it: another group is cheaper
            if not isinstance(result, Given):
                break
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            result = await self._group.submit(call)
        if isinstance(result, Given):
            result = await self._complete_locked(result)
        if isinstance(result, Completion):
            return result
        raise result

    def settled(self, settled: Settled) -> None:
        """Notify workers of the queues, transports and deadlines that a completion has changed."""
        for queue, count in Counter(settled.queues).items():
            self._notifier.notify_work(queue, count)
        for transport in settled.transports:
            self._notifier.notify_dispatch(transport)
        if settled.next_deadline is not None:
            self._notifier.publish(notifications.DUE)

    async def _complete(self, calls: list[Call]) -> Sequence[Result]:
        """Accept a group of completions; returns results in the order of the calls. The lookup of one group overlaps
        the statements of the group before it."""
        before, own = self._last, asyncio.get_running_loop().create_future()
        self._last = own
        try:
            results, waiting = await self._lookup.look_up(calls)
            if before is not None:
                await before  # the future itself: this continues before the callers of that group
            async with self._accepting:
                for round_ in _rounds(waiting):
                    results |= await self._accept(round_)
        finally:
            if not own.done():
                own.set_result(None)
        return [results[position] for position in range(len(calls))]

    async def _accept(self, round_: dict[int, Given]) -> dict[int, Result]:
        if probes.hooks:
            await probes.reach("complete.found", ids=[given.found.id for given in round_.values()])
        results: dict[int, Result] = {}
        rest = round_
        try:
            while rest:
                given = list(rest.values())
                result = await retried(partial(complete, self._database, given, self._paths))
                self.settled(result.settled)
                positions = list(rest)
                results |= {positions[n]: result_of(given[n], verdict) for n, verdict in result.verdicts.items()}
                rest = {positions[n]: given[n] for n in result.rest}
        except (Contention, Refusal, Outage) as error:
            if not results:
                raise
            # The fast path has accepted the others. These are unchanged and are retried; after an Outage that is
            # unknown.
            results |= {position: Outage(str(error)) for position in rest} if isinstance(error, Outage) else rest
        if probes.hooks:
            await probes.reach("complete.admitted", ids=[given.found.id for given in round_.values()])
        return results

    async def _complete_locked(self, given: Given) -> Completion | CompletionRefused:
        """Another transaction locks the instance: wait for it, on one connection for all completions of the instance.

        Separate transactions of very many completions would take the lock in turn and never leave it free.
        """
        id_ = given.found.instance_id
        batcher = self._batchers.setdefault(id_, Batcher(self._complete_waiting, lambda one: len(one.reply)))
        self._waiting[id_] += 1
        try:
            return await batcher.submit(given)
        finally:
            self._waiting[id_] -= 1
            if not self._waiting[id_]:
                del self._batchers[id_], self._waiting[id_]

    async def _complete_waiting(self, waiting: list[Given]) -> Sequence[Completion | CompletionRefused]:
        """Accept completions of one instance, each interaction at most once per statement; returns results in order."""
        results: dict[int, Completion | CompletionRefused] = {}
        for round_ in _rounds(dict(enumerate(waiting))):
            positions, ready = list(round_), list(round_.values())
            result = await retried(partial(complete, self._database, ready, self._paths, waits=True))
            self.settled(result.settled)
            for n, verdict in result.verdicts.items():
                ended = result_of(ready[n], verdict)
                results[positions[n]] = UnknownInteraction(ready[n].found.id) if isinstance(ended, Given) else ended
        return [results[position] for position in range(len(waiting))]


def _rounds(waiting: dict[int, Given]) -> Iterator[dict[int, Given]]:
    """Completions by their positions, in rounds: each interaction at most once per round, its first completion first.
    """
    while waiting:
        first = {given.found.id: position for position, given in reversed(waiting.items())}
        yield {position: waiting.pop(position) for position in sorted(first.values())}
