"""The HTTP application for approvers: `uvicorn web:app`. A bearer token identifies the caller."""

from __future__ import annotations

import os

from app import engine

from stepwell.web import BearerToken, completions

ana = BearerToken(os.environ["ANAS_TOKEN"], scopes={"read", "complete"}, actor="ana")

app = completions(engine, tokens=[ana])
