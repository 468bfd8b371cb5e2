"""Ordinary steps of a pipeline's file: a function, its cardinality, and what happens to its errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from stepwell._core.serialization.type_ref import shown
from stepwell.errors import DefinitionError
from stepwell.pipelines.decorators import check_accepts, declare
from stepwell.pipelines.model import Cardinality, PipelineStep
from stepwell.pipelines.yaml.await_steps import CARDINALITIES, read_type, read_types
from stepwell.pipelines.yaml.ignored_keys import STEP
from stepwell.pipelines.yaml.imports import Importer
from stepwell.pipelines.yaml.reader import Section

Steps: TypeAlias = Mapping[str, PipelineStep | Callable[..., Any]]
_CLASSES: Final = ("service", "operator", "delegate")  # the code of a step, where steps are classes
LONGEST_BACKOFF: Final = timedelta(seconds=30)
_MOST_RETRIES: Final = 1_000


class StepReader:
    """Reads one ordinary step."""

    def __init__(self, section: Section, name: str, types: Importer, given: Steps) -> None:
        self._section = section
        self._name = name
        self._types = types
        self._given = given

    def read(self) -> PipelineStep | None:
        section = self._section
        section.pass_over(STEP)
        names_class = any(section.has(key) for key in _CLASSES)
        for key in ("timeout", "await", "idempotencyKeyFields", "idempotency"):
            section.refuse(key, "belongs to steps of kind: await")
        for key in _CLASSES:
            section.refuse(key, "name the function instead: function: module:name")
        cardinality = section.choice("cardinality", CARDINALITIES)
        options = self._options() | self._accepts(cardinality)
        taken = read_type(section, "input", self._types, other="inputTypeName", required=False)
        given = read_type(section, "output", self._types, other="outputTypeName", required=False)
        function = None if names_class and not section.has("function") else self._function()
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
        given = Cardinality.ONE_TO_ONE if cardinality is None else Cardinality(cardinality)
        if problem := check_accepts(accepts, given):
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
                self._section.problem("is missing; as module:name, or pass it: load(…, steps={"
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
                self._section.problem(f"{cardinality} is given here, but the function is declared as "
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

    def _typed(self, step: PipelineStep, key: str, given: Any) -> PipelineStep:
        """The step with the type in the file; it must be the one of its function."""
        known = getattr(step, key)
        if given in (Any, known):
            return step
        if known is not Any:
            verb = "takes" if key == "input" else "gives"
            self._section.problem(f"{shown(given)} is given here, but the function {verb} {shown(known)}", key)
            return step
        return msgspec.structs.replace(step, **{key: given})


def double(first: timedelta, attempt: int) -> timedelta:
    """The first pause, twice as much, and so on up to 30 s, or to the first if that is longer."""
    return min(first * (1 << min(attempt - 1, 20)), max(first, LONGEST_BACKOFF))
