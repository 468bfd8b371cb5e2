"""The door for approvers, over HTTP: `uvicorn web:app`. Bearer tokens say who may look, and who may answer."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from app import engine
from starlette.applications import Starlette
from starlette.routing import Mount

from stepwell.web import BearerToken, completions


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with engine:
        yield


ana = BearerToken(os.environ["ANAS_TOKEN"], scopes={"read", "complete"}, actor="ana")

app = Starlette(routes=[Mount("/", completions(engine, tokens=[ana]))], lifespan=lifespan)
