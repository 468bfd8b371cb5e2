"""Ordinary steps of a pipeline's file: a function, how many go in and come out, and what becomes of its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from stepwell._core.references import shown
from stepwell.errors import DefinitionError
from stepwell.pipelines.boundaries import CARDINALITIES, read_type, read_types
from stepwell.pipelines.declaring import check_accepts, declare
from stepwell.pipelines.importing import Importer
from stepwell.pipelines.parts import Cardinality, PipelineStep
from stepwell.pipelines.sections import Section

Steps: TypeAlias = Mapping[str, PipelineStep | Callable[..., Any]]
LONGEST_BACKOFF: Final = timedelta(seconds=30)
_MOST_RETRIES: Final = 1_000


class StepReader:
    """One ordinary step."""

    def __init__(self, section: Section, name: str, types: Importer, given: Steps) -> None:
        self._section = section
        self._name = name
        self._types = types
        self._given = given

    def read(self) -> PipelineStep | None:
        section = self._section
        for key in ("timeout", "await", "idempotencyKeyFields", "idempotency"):
            section.refuse(key, "belongs to steps of kind: await")
        for key in ("service", "operator", "delegate"):
            section.refuse(key, "name the function instead: function: module:name")
        cardinality = section.choice("cardinality", CARDINALITIES)
        options = self._options() | self._accepts(cardinality)
        taken = read_type(section, "input", self._types, other="inputTypeName", required=False)
        given = read_type(section, "output", self._types, other="outputTypeName", required=False)
        function = self._function()
        section.finish()
        if function is None:
            return None
        step = self._declared(function, None if cardinality is None else Cardinality(cardinality), options)
        return step and self._typed(self._typed(step, "input", taken), "output", given)

    def _options(self) -> dict[str, Any]:
        found = {
            "retries": self._section.whole("retries", least=0, most=_MOST_RETRIES), "backoff": self._backoff(),
            "on_error": self._section.choice("onError", ("fail", "reject")),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value is not None}

    def _accepts(self, cardinality: str | None) -> dict[str, Any]:
        accepts = read_types(self._section, "accepts", self._types)
        said = Cardinality.ONE_TO_ONE if cardinality is None else Cardinality(cardinality)
        if problem := check_accepts(accepts, said):
            self._section.problem(problem, "accepts")
            return {}
        return {"accepts": tuple(accepts)} if accepts else {}

    def _backoff(self) -> Callable[[int], timedelta] | None:
        first = self._section.duration("backoff")
        return None if first is None else partial(double, first)

    def _function(self) -> PipelineStep | Callable[..., Any] | None:
        text = self._section.text("function")
        if text is None:
            if not self._section.has("function") and self._name in self._given:
                return self._given[self._name]
            if not self._section.has("function"):
                self._section.problem("is missing; as module:name, or hand it over: load(…, steps={"
                                      f"{self._name!r}: …}})", "function")  # fmt: skip
            return None
        try:
            found = self._types.find(text)
            return found if isinstance(found, PipelineStep) else self._types.find_function(text)
        except ValueError as error:
            self._section.problem(str(error), "function")
            return None

    def _declared(
        self, function: PipelineStep | Callable[..., Any], cardinality: Cardinality | None, options: dict[str, Any]
    ) -> PipelineStep | None:
        if isinstance(function, PipelineStep):
            if cardinality not in (None, function.cardinality):
                self._section.problem(f"{cardinality} is said here, but the function is declared as "
                                      f"{function.cardinality}", "cardinality")  # fmt: skip
            return msgspec.structs.replace(function, name=self._name, **options)
        if cardinality is None:
            if not self._section.has("cardinality"):
                self._section.problem("is missing", "cardinality")
            return None
        try:
            step: PipelineStep = declare(cardinality, function, name=self._name, **options)
        except DefinitionError as error:
            self._section.problem(str(error).removeprefix(f"pipeline step {self._name!r}: "), "function")
            return None
        return step

    def _typed(self, step: PipelineStep, key: str, said: Any) -> PipelineStep:
        """The step with the type that the file says; it must be the one that its function says."""
        known = getattr(step, key)
        if said in (Any, known):
            return step
        if known is not Any:
            verb = "takes" if key == "input" else "gives"
            self._section.problem(f"{shown(said)} is said here, but the function {verb} {shown(known)}", key)
            return step
        return msgspec.structs.replace(step, **{key: said})


def double(first: timedelta, attempt: int) -> timedelta:
    """The first pause, twice as much, and so on up to 30 s, or to the first if that is longer."""
    return min(first * (1 << min(attempt - 1, 20)), max(first, LONGEST_BACKOFF))
