"""Pipelines: items stream through steps and await steps, durably from one await step to the next."""

from __future__ import annotations

from stepwell._core.interaction import Answered
from stepwell.pipelines.decorators import await_, many_to_many, many_to_one, one_to_many, one_to_one
from stepwell.pipelines.model import AwaitStep as Boundary
from stepwell.pipelines.model import Cardinality, PipelineStep
from stepwell.pipelines.pipeline import Pipeline
from stepwell.pipelines.problems import PipelineProblem
from stepwell.pipelines.running.rejects import Rejected, reject
from stepwell.pipelines.yaml.load import load

__all__ = [
    "Answered",
    "Boundary",
    "Cardinality",
    "Pipeline",
    "PipelineProblem",
    "PipelineStep",
    "Rejected",
    "await_",
    "load",
    "many_to_many",
    "many_to_one",
    "one_to_many",
    "one_to_one",
    "reject",
]
