"""A Flask application as people write them: the engine is a module's global, and the import already calls it."""

from __future__ import annotations

import os

from flask import Flask, jsonify
from flask.typing import ResponseReturnValue

from stepwell import Engine
from tests.surfaces.sync.machines import MACHINES, Doubled

engine = Engine(os.environ["STEPWELL_DATABASE_URL"], machines=MACHINES)
engine.sync.check()
first = engine.sync.start(Doubled, {"number": 0})
app = Flask(__name__)


@app.get("/double/<int:number>")
def double(number: int) -> ResponseReturnValue:
    handle = engine.sync.start(Doubled, {"number": number})
    return jsonify(pid=os.getpid(), result=handle.result(timeout=30), first=first.result(timeout=30))
