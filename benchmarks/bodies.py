"""The cost of one request: how long the worst bodies hold the event loop of the HTTP application, and a backend.

The application runs in this process, beside a task that wants to run every millisecond: the longest time that it had
to wait is how long the loop was held. A thread sends the bodies. Backends are measured by the statement.

make bodies ARGS="--quick"
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import uvicorn
from pydantic import BaseModel

from benchmarks.replies import TYPES, worst_batches, worst_replies
from stepwell import Ask, Context, Done, Machine, step
from stepwell._core.serialization.reply_type import Projected
from stepwell.testing import Harness
from stepwell.web import BearerToken, completions
from tests.surfaces.web.bodies import mutations, worst_payloads

SHOWN = 12
AT_ONCE = 8
LONGEST = "5s"  # of a statement
BOUND = 100  # milliseconds that no other request should have to wait
SECRET = "bodies-" + "b" * 40
KEYS = {"1": "a secret of this benchmark, of 32 bytes or more"}
FUNCTIONS = {
    "start": ("select stepwell.start('Asker', $1, key => 'other', if_exists => 'return')", '{{"note": {}}}'),
    "start_many": (
        "select stepwell.start_many($1)", '[{{"machine": "Asker", "key": "other", "state": {{"note": {}}}}}]'
    ),
    "signal": ("select stepwell.signal('s', $1, key => 'other')", "{}"),
    "signal_many": ("select stepwell.signal_many($1)", '[{{"key": "other", "name": "s", "payload": {}}}]'),
    "complete": ("select stepwell.complete($1, '{asked}')", "{}"),
}  # fmt: skip


class Left(msgspec.Struct, tag=True):
    inner: Left | Right | None = None


class Right(msgspec.Struct, tag=True):
    inner: Left | Right | None = None


class Model(BaseModel):
    a: int = 0


class Models(BaseModel):
    all: list[float | int | Model | str]


def same(request: Any, facts: Any, answered: Any) -> Any:
    return facts


KINDS: dict[str, Any] = {
    "anything": Any, "numbers": list[float], "unions": list[Left | Right], "models": list[Model], "a model": Models,
    "a set": set[int], "projected": Projected(dict[str, Any], Any, same, Any),
    "projected models": Projected(dict[str, Any], list[Model], same, list[Model]),
}  # fmt: skip
NESTED = "[" + ",".join(['{"":' * 450 + "0" + "}" * 450] * 280) + "]"


def deep(depth: int) -> str:
    return '{"type":"Right","inner":' * depth + "null" + "}" * depth


def of_kinds() -> Iterator[tuple[str, str, str]]:
    """The most expensive bodies of those that a type accepts, and of those that it refuses at the end."""
    yield "anything", "nested objects", NESTED
    yield "projected", "nested objects", NESTED
    yield "projected", "empty objects", "[" + ",".join(["{}"] * 131_000) + "]"
    yield "projected", "floats", "[" + ",".join(["1e308"] * 3_360) + "]"
    for end in ("", ',{"a":"x"}', ",1"):
        models = ",".join(["{}"] * 130_000) + end
        yield "models", f"empty objects {end}", f"[{models}]"
        yield "projected models", f"empty objects {end}", f"[{models}]"
        yield "a model", f"empty objects {end}", f'{{"all":[{models}]}}'
        yield "a model", f"as many as are taken {end}", f'{{"all":[{",".join(["{}"] * 11_900)}{end}]}}'
    yield "a set", "numbers of one hash", f"[{','.join(str((2**61 - 1) * n) for n in range(44, 40_000))}]"
    yield "a model", "of no member of the union", '{"all":[' + ",".join(["[]"] * 11_900) + "]}"
    for end in ("", ",1"):
        yield "unions", f"empty ones {end}", "[" + ",".join(['{"type":"Right"}'] * 55_000) + end + "]"
        yield "unions", f"nested ones {end}", "[" + ",".join([deep(200)] * 180) + end + "]"


class Asker(Machine):
    """Asks for a reply of the type in its state."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Ask:
        kind = ctx.state.get("kind", "anything")
        return Ask("manual", {}, reply=KINDS.get(kind, TYPES.get(kind)), then=self.end,
                   token=ctx.state.get("token", True))

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Done:
        return Done()


@dataclass
class Held:
    """The longest time that the loop was held since the last read, in milliseconds: by the clock, and of the CPU.

    The CPU time, of all threads, shows the work, even if other processes use the same cores.
    """

    longest: float = 0.0
    worked: float = 0.0

    async def watch(self) -> None:
        before, worked = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now, work = time.perf_counter(), time.process_time()
            self.longest = max(self.longest, (now - before) * 1e3 - 1)
            self.worked = max(self.worked, (work - worked) * 1e3)
            before, worked = now, work

    def take(self) -> tuple[float, float]:
        taken = self.longest, self.worked
        self.longest = self.worked = 0.0
        return taken


@asynccontextmanager
async def serving(app: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
    running = asyncio.create_task(server._serve())  # noqa: SLF001 - without handlers for signals
    while not server.started:  # noqa: ASYNC110 - it has no event to wait for
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


def post(port: int, body: bytes, secret: str | None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {secret}"} if secret else {})}
    try:
        connection.request("POST", "/interactions/complete", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


async def ask(h: Harness, **state: Any) -> Any:
    started = await h.engine.start(Asker, state)
    await h.drain()
    [interaction] = [q for q in (await h.engine.interactions.pending(limit=500)).items if q.instance_id == started.id]
    return interaction


async def over_http(
    h: Harness, payloads: list[tuple[str, str]], number_of_mutations: int
) -> list[tuple[float, str]]:
    """Each body with no credentials, with a forged token, with a bearer token, and with the interaction's own token."""
    app = completions(h.engine, tokens=[BearerToken(SECRET, scopes={"complete"})], rate=None)
    held, rows = Held(), []
    watching = asyncio.create_task(held.watch())
    typed, untyped = await ask(h, kind="numbers"), await ask(h)
    tokens = {q.id: await h.engine.interactions.token(q.id) for q in (typed, untyped)}
    async with serving(app) as port:
        await asyncio.to_thread(post, port, b"{}", SECRET)  # the first request sets up what later ones use
        for name, payload in payloads:
            for caller, asked, token, secret in [
                ("unknown", untyped, None, None), ("forged", untyped, "sw1.1.W10.abc", None),
                ("typed", typed, tokens[typed.id], SECRET), ("own token", untyped, tokens[untyped.id], None),
            ]:  # fmt: skip
                named = f'"resumeToken": "{token}", ' if token else ""
                body = f'{{"interactionId": "{asked.id}", {named}"responsePayload": {payload}}}'.encode()
                held.take()
                status = await asyncio.to_thread(post, port, body, secret)
                clock, cpu = held.take()
                rows.append((cpu, f"{status} {caller}: {name} ({clock:.1f} ms by the clock)"))
                if status == HTTPStatus.OK:  # ask again
                    interaction = await ask(h, kind="numbers" if caller == "typed" else "anything")
                    tokens[interaction.id] = await h.engine.interactions.token(interaction.id)
                    typed, untyped = (interaction, untyped) if caller == "typed" else (typed, interaction)
        good = {"interactionId": typed.id, "resumeToken": tokens[typed.id], "responsePayload": [1.5, 2], "actor": "a"}
        for body in mutations(good, number_of_mutations):
            held.take()
            status = await asyncio.to_thread(post, port, body, None)
            clock, cpu = held.take()
            rows.append((cpu, f"{status} a mutation ({clock:.1f} ms by the clock)"))
    watching.cancel()
    if faults := [what for _, what in rows if what.startswith("5")]:
        raise SystemExit(f"server errors: {faults}")
    return rows


async def of_types(h: Harness, number: int) -> list[tuple[float, str]]:
    """Bodies of a known caller, each for interactions that ask for such a reply, several at once."""
    app = completions(h.engine, tokens=[BearerToken(SECRET, scopes={"complete"})], rate=None)
    held, rows = Held(), []
    watching = asyncio.create_task(held.watch())
    async with serving(app) as port:
        await asyncio.to_thread(post, port, b"{}", SECRET)
        for kind, name, payload in of_kinds():
            asked = [await ask(h, kind=kind, token=False) for _ in range(number)]
            bodies = [f'{{"interactionId": "{one.id}", "responsePayload": {payload}}}'.encode() for one in asked]
            held.take()
            statuses = await asyncio.gather(*(asyncio.to_thread(post, port, body, SECRET) for body in bodies))
            clock, cpu = held.take()
            rows.append((cpu, f"{statuses[0]} {kind}: {name} ({clock:.1f} ms by the clock)"))
    watching.cancel()
    return rows


async def in_sql(h: Harness, payloads: list[tuple[str, str]]) -> list[tuple[float, str]]:
    """The checks of each SQL function, without the transfer: Postgres has read the JSON before."""
    asked = {kind: (await ask(h, kind=kind, token=False)).id for kind in ("anything", *TYPES)}
    connection = await asyncpg.connect(h.url)
    await connection.execute(f"set statement_timeout = '{LONGEST}'")
    await connection.execute("create temp table sent (value jsonb)")
    try:
        return [row for each in calls(payloads, asked) if (row := await costs(connection, *each)) is not None]
    finally:
        await connection.close()


def calls(payloads: list[tuple[str, str]], asked: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Its name, its statement, and its argument. `asked` has an interaction of each type."""
    for name, payload in payloads:
        for function, (statement, wrapped) in FUNCTIONS.items():
            yield f"{function}: {name}", statement.replace("{asked}", asked["anything"]), wrapped.format(payload)
    for function, what, text in worst_batches():
        yield f"{function}: {what}", FUNCTIONS[function][0], text
    for kind, what, text in worst_replies():
        yield f"complete: {kind}, {what}", FUNCTIONS["complete"][0].replace("{asked}", asked[kind]), text


async def costs(connection: asyncpg.Connection, name: str, statement: str, text: str) -> tuple[float, str] | None:
    """The cost of one call, rolled back, for its backend; None if the body is not jsonb."""
    pid = connection.get_server_pid()
    await connection.execute("truncate sent")
    try:
        await connection.execute("insert into sent values ($1)", text)
    except asyncpg.PostgresError:
        return None
    query = statement.replace("$1", "(select value from sent)")
    outcome = "taken"
    transaction = connection.transaction()
    await transaction.start()
    before, worked = time.perf_counter(), worked_by(pid)
    try:
        await connection.fetch(query)
    except asyncpg.PostgresError as error:
        outcome = f"{error.sqlstate}"
    clock, cpu = (time.perf_counter() - before) * 1e3, (worked_by(pid) - worked) * 1e3
    await transaction.rollback()
    return cpu, f"{outcome} {name} ({clock:.1f} ms by the clock)"


def worked_by(pid: int) -> float:
    """Seconds of CPU that a process of this machine has used; by the clock, where Linux does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except OSError:
        return time.perf_counter()


def show(title: str, rows: list[tuple[float, str]]) -> bool:
    """Print the worst of them; returns whether all are within the bound."""
    rows = sorted(rows, reverse=True)
    above, middle = sum(cpu > BOUND for cpu, _ in rows), rows[len(rows) // 2][0]
    lines = [f"{title}, ms of CPU: {len(rows)} tried, {above} above {BOUND}; the middle {middle:.1f}"]
    lines += [f"  {cpu:8.1f}  {what}" for cpu, what in rows[:SHOWN]]
    sys.stdout.write("\n".join(lines) + "\n\n")
    return not above


async def main(options: argparse.Namespace) -> bool:
    payloads = list(worst_payloads())[:: 7 if options.quick else 1]
    async with Harness([Asker], token_keys=KEYS) as h:
        await h.engine.migrate()
        await h.engine.start(Asker, key="other")
        http_rows = await over_http(h, payloads, 100 if options.quick else 1_500)
        type_rows = await of_types(h, 1)
        together = await of_types(h, AT_ONCE)
        sql_rows = await in_sql(h, payloads)
    fine = show("The event loop of the application, held by one request", http_rows)
    fine = show("The same, by replies of types", type_rows) and fine
    show(f"The same, by {AT_ONCE} of them at once, which may take longer", together)
    return show("A backend, by one call", sql_rows) and fine


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="every seventh body")
    raise SystemExit(0 if asyncio.run(main(parser.parse_args())) else 1)
