"""The ASGI application for external systems: complete an interaction, list what is pending, look at one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.engine import Engine
from stepwell.errors import CompletionRefused, InvalidInput
from stepwell.web.bearers import Bearers, BearerToken, Scope
from stepwell.web.bodies import Completion, read_completion
from stepwell.web.interactions import read_query, show_completion, show_interaction, write_page
from stepwell.web.openapi import describe
from stepwell.web.problems import HANDLERS, Problem, as_json, invalid, refusal, respond, too_fast, unauthenticated
from stepwell.web.rate_limit import Rate, Throttle, name_address
from stepwell.web.refusal_log import STATUSES, RefusalLog

ENVELOPE = 64 * 1024  # bytes of a body beside the reply itself
LEAST_BODY = 1024
LONGEST_ADDRESS = 100  # characters of an address in the log
RATE = Rate(100, per=timedelta(seconds=1), burst=200)


def completions(
    engine: Engine,
    *,
    tokens: Iterable[BearerToken] = (),
    allow_resume_tokens: bool = True,
    max_body: int | None = None,
    rate: Rate | None = RATE,
) -> Starlette:
    """An ASGI application for external systems: public, while the rest of yours is private.

    `tokens` are the known callers. The signed token of an interaction completes that one without a bearer token,
    unless `allow_resume_tokens=False`. Refuses to be built if no caller, or every caller, could use it. `max_body` is
    in bytes (by default `max_payload` and 64 kB); `rate` applies to each client in each process (None: no limit).

    Alone, it opens the engine while it runs; mounted, the application around it has to.
    """
    bearers = Bearers(tokens)
    if not len(bearers) and not (allow_resume_tokens and engine.has_token_keys):
        raise InvalidInput("tokens", "no caller could use it; pass tokens=[BearerToken(…)], or accept signed tokens "
                           "with Engine(token_keys=…) and allow_resume_tokens=True")
    most = _check_body(engine.settings.max_payload + ENVELOPE if max_body is None else max_body)
    api = _Api(engine, bearers, most, allow_resume_tokens=allow_resume_tokens, rate=rate)

    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    app = Starlette(routes=api.routes(), exception_handlers=HANDLERS, lifespan=opened)
    app.router.redirect_slashes = False
    return app


class _Api:
    """Identifies the caller, checks its scope and its rate; then the engine decides."""

    def __init__(
        self, engine: Engine, bearers: Bearers, most: int, *, allow_resume_tokens: bool, rate: Rate | None
    ) -> None:
        self._engine = engine
        self._bearers = bearers
        self._most = most
        self._allow_resume_tokens = allow_resume_tokens
        self._throttle = None if rate is None else Throttle(rate)
        self._refusals = RefusalLog()

    def routes(self) -> list[Route]:
        return [
            self._route("POST", "/interactions/complete", self.complete),
            self._route("GET", "/interactions/pending", self.pending),
            self._route("GET", "/interactions/{interaction_id}", self.show),
            self._route("GET", "/openapi.json", self.document),
        ]

    def _route(self, method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
        """A route that logs refused callers. The log has the route's own path: the request's may hold a secret."""

        async def respond(request: Request) -> Response:
            try:
                return await endpoint(request)
            except Problem as problem:
                if problem.status in STATUSES:
                    self._refusals.note(self._name(request), f"{problem.status} {problem.reason} at {method} {path}")
                raise

        return Route(path, respond, methods=[method], name=endpoint.__name__)

    async def complete(self, request: Request) -> Response:
        bearer = self._caller(request)
        if bearer is not None:
            _check_scope(bearer, "complete")
        elif not self._allow_resume_tokens:
            raise unauthenticated("send Authorization: Bearer …")
        body = await read_completion(request, self._most)
        if bearer is None and body.token is None:
            raise unauthenticated("send Authorization: Bearer …, or the interaction's resumeToken in the body")
        try:
            return as_json(show_completion(await self._engine.complete(**self._arguments(body, bearer))))
        except CompletionRefused as error:
            raise refusal(error, has_bearer=bearer is not None) from error
        except InvalidInput as error:
            raise invalid(error) from error

    def _arguments(self, body: Completion, bearer: BearerToken | None) -> dict[str, Any]:
        """The arguments for the engine. A known caller completes in its own name and tenant, whatever the body says."""
        arguments = msgspec.structs.asdict(body)
        if bearer is not None:
            arguments["tenant"] = self._engine.settings.tenant if bearer.tenant is None else bearer.tenant
            arguments["actor"] = body.actor if bearer.actor is None else bearer.actor
        return arguments

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
        return respond(await write_page(page))

    async def show(self, request: Request) -> Response:
        bearer = self._reader(request)
        try:
            found = await self._engine.interactions.get(request.path_params["interaction_id"], tenant=bearer.tenant)
        except CompletionRefused as error:
            raise refusal(error, has_bearer=True) from error
        except InvalidInput as error:
            raise Problem(404, "unknown", f"there is no such interaction: {error.problem}") from error
        return as_json(show_interaction(found))

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
        """The caller; None without credentials. Wrong credentials count by the client's address."""
        bearer = self._bearer(request)
        if self._throttle is not None and (wait := self._throttle.take(_client(request, bearer))):
            raise too_fast(wait)
        if bearer is None and "authorization" in request.headers:
            raise unauthenticated("the Authorization header has no known token")
        return bearer

    def _bearer(self, request: Request) -> BearerToken | None:
        headers = request.headers.getlist("authorization")
        return self._bearers.find(_secret(headers[0])) if len(headers) == 1 else None

    def _name(self, request: Request) -> str:
        bearer = self._bearer(request)
        if bearer is not None:
            return self._bearers.name(bearer)
        # A server that trusts X-Forwarded-For may give any text as an address.
        return ascii(_client(request, None)[:LONGEST_ADDRESS])[1:-1] or "an unknown address"


def _check_scope(bearer: BearerToken, scope: Scope) -> BearerToken:
    if scope not in bearer.scopes:
        challenge = f'Bearer error="insufficient_scope", scope="{scope}"'
        raise Problem(403, "scope", f"this bearer token does not have the scope {scope!r}",
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
