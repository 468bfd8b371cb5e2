"""The door for approvers, over HTTP: `uvicorn web:app`. A bearer token says who looks and who answers."""

from __future__ import annotations

import os

from app import engine

from stepwell.web import BearerToken, completions

ana = BearerToken(os.environ["ANAS_TOKEN"], scopes={"read", "complete"}, actor="ana")

app = completions(engine, tokens=[ana])
