"""Doors over HTTP: `completions(engine, …)` is the one by which the world answers questions."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell.errors import MissingExtra

if find_spec("starlette") is None:
    raise MissingExtra("web", "stepwell.web")

from stepwell.web.bearers import BearerToken
from stepwell.web.completions import completions
from stepwell.web.rates import Rate

__all__ = ["BearerToken", "Rate", "completions"]
