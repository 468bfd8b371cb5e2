"""Completions over HTTP: `completions(engine, …)` is the application by which external systems complete
interactions.
"""

from __future__ import annotations

from importlib.util import find_spec

from stepwell.errors import MissingExtra

if find_spec("starlette") is None:
    raise MissingExtra("web", "stepwell.web")

from stepwell.web.bearers import BearerToken
from stepwell.web.completions import completions
from stepwell.web.rate_limit import Rate

__all__ = ["BearerToken", "Rate", "completions"]
