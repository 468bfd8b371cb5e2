"""The lifespan of Starlette and FastAPI applications, driven by their own test clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

from stepwell import Context, Done, Engine, EngineClosed, Machine, SchemaOutdated, step
from stepwell.contrib.starlette import lifespan
from tests.conftest import MakeHarness
from tests.surfaces.contrib.clients import TestClient


class Hello(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("hello")


async def hello(request: StarletteRequest) -> JSONResponse:
    handle = await request.state.engine.start(Hello)
    return JSONResponse({"id": handle.id, "result": await handle.result(timeout=30)})


async def start(request: StarletteRequest) -> JSONResponse:
    return JSONResponse({"id": (await request.state.engine.start(Hello)).id})


ROUTES = [Route("/hello", hello), Route("/start", start)]


@pytest.fixture
async def engine(make_harness: MakeHarness) -> Engine:
    h = await make_harness([Hello])
    return h.another_engine()


def test_a_starlette_application_starts_instances_and_its_worker_runs_them(engine: Engine) -> None:
    app = Starlette(routes=ROUTES, lifespan=lifespan(engine, worker={"default": 3}))

    with TestClient(app) as client:
        answer = client.get("/hello").json()

    assert answer["result"] == "hello"


def test_a_fastapi_application_has_the_engine_in_its_requests(engine: Engine) -> None:
    app = FastAPI(lifespan=lifespan(engine, worker=True))

    @app.get("/hello")
    async def say(request: Request) -> str:
        return str(await (await request.state.engine.start(Hello)).result(timeout=30))

    with TestClient(app) as client:
        assert client.get("/hello").json() == "hello"


def test_without_a_worker_the_application_runs_no_step(engine: Engine) -> None:
    with TestClient(Starlette(routes=ROUTES, lifespan=lifespan(engine))) as client:
        started = client.get("/start").json()["id"]

    with engine.sync as sync:
        assert sync.get(started).status == "runnable"
        assert sync.insights.workers() == []


def test_the_shutdown_drains_the_worker_and_closes_the_engine(engine: Engine) -> None:
    with TestClient(Starlette(routes=ROUTES, lifespan=lifespan(engine, worker=True))) as client:
        client.get("/hello")

    with pytest.raises(EngineClosed):
        engine.handle(1)
    with engine.sync as sync:
        assert [worker.id for worker in sync.insights.workers() if worker.alive] == []


def test_the_applications_own_lifespan_runs_inside_and_adds_to_the_state(engine: Engine) -> None:
    told: list[str] = []

    @asynccontextmanager
    async def own(app: Starlette) -> AsyncIterator[dict[str, Any]]:
        told.append(f"enter {(await engine.start(Hello)).id > 0}")
        yield {"name": type(app).__name__}
        told.append(f"leave {(await engine.start(Hello)).id > 0}")

    async def name(request: StarletteRequest) -> JSONResponse:
        return JSONResponse([request.state.name, request.state.engine is engine])

    app = Starlette(routes=[Route("/name", name)], lifespan=lifespan(engine, then=own))
    with TestClient(app) as client:
        assert client.get("/name").json() == ["Starlette", True]

    assert told == ["enter True", "leave True"]


def test_steps_run_only_while_the_applications_own_lifespan_lasts(engine: Engine) -> None:
    told: list[list[int]] = []

    @asynccontextmanager
    async def own(_: Starlette) -> AsyncIterator[None]:
        told.append([worker.id for worker in await engine.insights.workers() if worker.alive])
        yield
        told.append([worker.id for worker in await engine.insights.workers() if worker.alive])

    with TestClient(Starlette(routes=ROUTES, lifespan=lifespan(engine, worker=True, then=own))) as client:
        assert client.get("/hello").json()["result"] == "hello"

    assert told == [[], []]


def test_an_own_lifespan_that_yields_nothing_is_accepted(engine: Engine) -> None:
    @asynccontextmanager
    async def own(_: Starlette) -> AsyncIterator[None]:
        yield

    with TestClient(Starlette(routes=ROUTES, lifespan=lifespan(engine, then=own))) as client:
        assert client.get("/start").status_code == 200


def test_an_application_may_be_started_again(engine: Engine) -> None:
    app = Starlette(routes=ROUTES, lifespan=lifespan(engine))

    for _ in range(2):
        with TestClient(app) as client:
            assert client.get("/start").status_code == 200


async def test_the_lifespan_migrates_if_told_to(make_harness: MakeHarness) -> None:
    h = await make_harness([Hello])
    await h.sql("drop schema stepwell cascade")
    engine = h.another_engine()

    with pytest.raises(SchemaOutdated):
        async with lifespan(engine)(None):
            pass
    async with lifespan(engine, migrate=True)(None) as state:
        handle = await state["engine"].start(Hello)

    assert handle.id > 0


def test_the_module_needs_no_starlette_to_be_imported() -> None:
    look = "import sys, stepwell.contrib.starlette; print('starlette' in sys.modules)"

    ended = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)

    assert ended.stdout == "False\n"
