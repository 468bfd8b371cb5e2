"""A process with a worker as the guide shows it: SIGTERM ends the block. Its steps never end: `python -m … URL`."""

from __future__ import annotations

import argparse
import asyncio
import atexit
import logging
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Engine, Event, Machine, step


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Sleeper(Machine, initial="sleep"):
    """Sleeps in a thread for ever."""

    @step
    def sleep(self, ctx: Context[Any]) -> Done:
        say("begun")
        while True:
            time.sleep(3600)


class Deaf(Machine, initial="wait"):
    """Waits for ever, and ignores cancels."""

    @step
    async def wait(self, ctx: Context[Any]) -> Done:
        say("begun")
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue


class Threaded(Machine, initial="wait"):
    """Waits for threads that sleep for ever: of the loop's pool, or of pools that its thread makes."""

    @step
    async def wait(self, ctx: Context[Any]) -> Done:
        say("begun")
        await asyncio.to_thread(time.sleep, 3600)
        return Done()

    @step
    def wait_in_a_pool(self, ctx: Context[Any]) -> Done:
        say("begun")
        with ThreadPoolExecutor() as pool:
            pool.submit(time.sleep, 3600)
        return Done()

    @step
    def wait_in_new_pools(self, ctx: Context[Any]) -> Done:
        say("begun")
        pools = []
        while True:
            pools.append(ThreadPoolExecutor(thread_name_prefix="work"))
            pools[-1].submit(time.sleep, 3600)
            time.sleep(0.02)

    @step
    def wait_in_a_loop(self, ctx: Context[Any]) -> Done:
        say("begun")
        asyncio.run(asyncio.to_thread(time.sleep, 3600))
        return Done()


def never_return(event: Event) -> None:
    while True:
        time.sleep(3600)


async def main(url: str, drain_timeout: float, *, is_hooked: bool, leaves: bool) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    engine = Engine(url, machines=[Sleeper, Deaf, Threaded], drain_timeout=timedelta(seconds=drain_timeout))
    if is_hooked:
        engine.on("all", never_return)
    async with engine, engine.worker() as worker:
        say(f"ready {worker.id}")
        await stop.wait()
    if leaves and worker.left_behind:
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--drain-timeout", type=float, default=0.5)
    parser.add_argument("--hook", action="store_true", help="hook a callback that never returns")
    parser.add_argument("--leave", action="store_true", help="end without what steps have left behind")
    parser.add_argument("--code", type=int, default=0, help="what to exit with")
    given = parser.parse_args()
    if given.code:
        atexit.register(say, "exit handlers ran")
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    asyncio.run(main(given.url, given.drain_timeout, is_hooked=given.hook, leaves=given.leave))
    sys.exit(given.code)
