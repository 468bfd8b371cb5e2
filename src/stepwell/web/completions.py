"""The door by which the world answers: complete a question, list what is pending, look at one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.engine import Engine
from stepwell.errors import CompletionRefused, InvalidInput
from stepwell.web.bearers import Bearers, BearerToken, Scope
from stepwell.web.bodies import CompletionBody, read_completion
from stepwell.web.interactions import read_query, show_completion, show_interaction
from stepwell.web.openapi import describe
from stepwell.web.problems import HANDLERS, Problem, as_json, invalid, refusal, too_fast, unauthenticated
from stepwell.web.rates import Rate, Throttle, name_address

ENVELOPE = 64 * 1024  # bytes of a body beside the reply itself
LEAST_BODY = 1024
RATE = Rate(100, per=timedelta(seconds=1), burst=200)


def completions(
    engine: Engine,
    *,
    tokens: Iterable[BearerToken] = (),
    allow_resume_tokens: bool = True,
    max_body: int | None = None,
    rate: Rate | None = RATE,
) -> Starlette:
    """An ASGI application for the world: public, while the rest of yours is private.

    Callers are known by `tokens`. Who holds the signed token of a question may answer that one without being known,
    unless `allow_resume_tokens=False`. A door that nobody could use, or everybody, is not built. `max_body` is in bytes
    (by default `max_payload` and 64 kB); `rate` holds for each client in each process (None: no limit).

    On its own it opens the engine for as long as it runs; mounted, the application around it has to.
    """
    bearers = Bearers(tokens)
    if not len(bearers) and not (allow_resume_tokens and engine.has_token_keys):
        raise InvalidInput("tokens", "nobody could use this door; pass tokens=[BearerToken(…)], or let signed tokens "
                           "answer: Engine(token_keys=…) and allow_resume_tokens=True")
    most = _check_body(engine.settings.max_payload + ENVELOPE if max_body is None else max_body)
    door = _Door(engine, bearers, most, allow_resume_tokens=allow_resume_tokens, rate=rate)

    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    app = Starlette(routes=door.routes(), exception_handlers=HANDLERS, lifespan=opened)
    app.router.redirect_slashes = False
    return app


class _Door:
    """Who calls, may they, how often; then the engine decides."""

    def __init__(
        self, engine: Engine, bearers: Bearers, most: int, *, allow_resume_tokens: bool, rate: Rate | None
    ) -> None:
        self._engine = engine
        self._bearers = bearers
        self._most = most
        self._allow_resume_tokens = allow_resume_tokens
        self._throttle = None if rate is None else Throttle(rate)

    def routes(self) -> list[Route]:
        return [
            Route("/interactions/complete", self.complete, methods=["POST"]),
            Route("/interactions/pending", self.pending, methods=["GET"]),
            Route("/interactions/{interaction_id}", self.show, methods=["GET"]),
            Route("/openapi.json", self.document, methods=["GET"]),
        ]

    async def complete(self, request: Request) -> Response:
        bearer = self._caller(request)
        if bearer is not None:
            _check_scope(bearer, "complete")
        elif not self._allow_resume_tokens:
            raise unauthenticated("send Authorization: Bearer …")
        body = await read_completion(request, self._most)
        if bearer is None and body.resume_token is None:
            raise unauthenticated("send Authorization: Bearer …, or the question's resumeToken in the body")
        try:
            return as_json(show_completion(await self._engine.complete(**self._answer(body, bearer))))
        except CompletionRefused as error:
            raise refusal(error, has_bearer=bearer is not None) from error
        except InvalidInput as error:
            raise invalid(error) from error

    def _answer(self, body: CompletionBody, bearer: BearerToken | None) -> dict[str, Any]:
        """What the engine is asked. Who is known answers in their own name and tenant, whatever the body says."""
        answer = {
            "interaction": body.interaction_id, "correlation": body.correlation_id, "token": body.resume_token,
            "reply": body.response_payload, "actor": body.actor,
        }  # fmt: skip
        if bearer is not None:
            answer["tenant"] = self._engine.settings.tenant if bearer.tenant is None else bearer.tenant
            answer["actor"] = body.actor if bearer.actor is None else bearer.actor
        return answer

    async def pending(self, request: Request) -> Response:
        bearer = self._reader(request)
        query = read_query(request.query_params)
        try:
            page = await self._engine.interactions.pending(
                tenant=bearer.tenant, assignee=query.assignee, group=query.group, machine=query.machine,
                step=query.step, transport=query.transport, overdue=query.overdue, limit=query.limit,
                after=query.cursor,
            )  # fmt: skip
        except InvalidInput as error:
            raise invalid(error, 400) from error
        return as_json({"interactions": [show_interaction(asked) for asked in page.items], "cursor": page.cursor})

    async def show(self, request: Request) -> Response:
        bearer = self._reader(request)
        try:
            question = await self._engine.interactions.get(request.path_params["interaction_id"], tenant=bearer.tenant)
        except CompletionRefused as error:
            raise refusal(error, has_bearer=True) from error
        except InvalidInput as error:
            raise Problem(404, "unknown", f"there is no such question: {error.problem}") from error
        return as_json(show_interaction(question))

    async def document(self, request: Request) -> Response:
        self._caller(request)
        root = request.scope.get("root_path", "")
        return as_json(describe(root, self._most, allow_resume_tokens=self._allow_resume_tokens))

    def _reader(self, request: Request) -> BearerToken:
        bearer = self._caller(request)
        if bearer is None:
            raise unauthenticated("send Authorization: Bearer …")
        return _check_scope(bearer, "read")

    def _caller(self, request: Request) -> BearerToken | None:
        """Who calls; None who does not say so. Who gives wrong credentials counts by where they come from."""
        headers = request.headers.getlist("authorization")
        bearer = self._bearers.find(_secret(headers[0])) if len(headers) == 1 else None
        if self._throttle is not None and (wait := self._throttle.take(_client(request, bearer))):
            raise too_fast(wait)
        if headers and bearer is None:
            raise unauthenticated("the Authorization header names nobody who is known here")
        return bearer


def _check_scope(bearer: BearerToken, scope: Scope) -> BearerToken:
    if scope not in bearer.scopes:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        raise Problem(403, "scope", f"this bearer token has not the scope {scope!r}",
                      headers={"WWW-Authenticate": challenge})
    return bearer


def _client(request: Request, bearer: BearerToken | None) -> str:
    if bearer is not None:
        return bearer.digest.hex()
    return name_address("" if request.client is None else request.client.host)


def _secret(header: str) -> str:
    scheme, _, secret = header.strip().partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _check_body(most: object) -> int:
    if isinstance(most, bool) or not isinstance(most, int) or most < LEAST_BODY:
        raise InvalidInput("max_body", f"expected a number of bytes from {LEAST_BODY:,}, got {most!r}")
    return most
