"""Pipelines: items stream through steps, and through questions to the world, durably from boundary to boundary."""

from __future__ import annotations

from stepwell._core.interactions import Answered
from stepwell.pipelines.declaring import await_, many_to_many, many_to_one, one_to_many, one_to_one
from stepwell.pipelines.files import load
from stepwell.pipelines.parts import Boundary, Cardinality, PipelineStep
from stepwell.pipelines.pipeline import Pipeline
from stepwell.pipelines.problems import PipelineProblem
from stepwell.pipelines.rejecting import Rejected, reject

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
