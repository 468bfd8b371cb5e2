"""Pipelines in YAML: read, checked as a whole, and made into the same objects as those written in Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from stepwell._core.serialization.type_ref import shown
from stepwell.config import check_name
from stepwell.errors import DefinitionError, InvalidPipeline
from stepwell.pipelines.model import AwaitStep, Part
from stepwell.pipelines.pipeline import Pipeline
from stepwell.pipelines.problems import PipelineProblem
from stepwell.pipelines.running.rejects import Sink, log_rejected
from stepwell.pipelines.yaml.await_steps import read_await_step, read_type
from stepwell.pipelines.yaml.ignored_keys import NOT_HERE, TOP, VERSION_OF_FORMAT
from stepwell.pipelines.yaml.imports import Importer
from stepwell.pipelines.yaml.keys import Findings, near_miss
from stepwell.pipelines.yaml.reader import Section, open_file
from stepwell.pipelines.yaml.steps import StepReader, Steps
from stepwell.pipelines.yaml.transports import TransportOptions, TransportSpec, build
from stepwell.transports.base import Transport

_HIGHEST_VERSION: Final = 2**31 - 1
_KINDS: Final = ("step", "await", "internal")  # an "internal" step is an ordinary one


def load(
    path: str | os.PathLike[str],
    *,
    steps: Steps | None = None,
    transports: TransportOptions | None = None,
    rejected: Sink = log_rejected,
) -> Pipeline:
    """The pipeline in a file; InvalidPipeline has everything that is wrong with it, with lines.

    `steps` has the functions of steps that name none, by the name of the step. `transports` has what must not be in a
    file: `{"webhook": {"secret": …}, "kafka": {"brokers": …}}`, by the type or the name of a transport. Pass the
    file's transports to the engine: `Engine(machines=[pipeline.machine], transports=pipeline.transports)`.
    """
    draft = Draft(path, steps or {})
    return draft.pipeline(draft.build(transports or {}), rejected)


def read(path: str | os.PathLike[str], *, steps: Steps | None = None) -> Pipeline:
    """The same without its transports: to check a file, or to draw it."""
    return Draft(path, steps or {}).pipeline((), log_rejected)


def read_with_notes(path: str | os.PathLike[str]) -> tuple[Pipeline, list[PipelineProblem]]:
    """The same, with the ignored keys of the file in their order."""
    draft = Draft(path, {})
    return draft.pipeline((), log_rejected), draft.notes


class Draft:
    """The valid parts of a file."""

    def __init__(self, path: str | os.PathLike[str], steps: Steps) -> None:
        self._findings = Findings(os.fspath(path))
        self._given = steps
        self._parts: list[Part] = []
        self._specs: dict[str, tuple[TransportSpec, str]] = {}  # with the step that describes it
        self._sections: dict[str, Section] = {}
        self._terminal: list[Section] = []  # steps behind which nothing may come
        self._top: dict[str, Any] = {}
        section = open_file(Path(path), self._findings)
        if section is not None:
            self._read(section)
        self._findings.raise_any()

    @property
    def notes(self) -> list[PipelineProblem]:
        """Keys that have no meaning here."""
        return sorted(self._findings.notes, key=lambda note: note.line or 0)

    def pipeline(self, transports: Sequence[Transport], rejected: Sink) -> Pipeline:
        """The pipeline; parts that do not fit together are reported with the line of their step."""
        try:
            return Pipeline(parts=self._parts, transports=transports, rejected=rejected, **self._top)
        except InvalidPipeline as error:
            for problem in error.problems:
                section = self._sections.get(problem.step or "")
                self._findings.add(problem.problem, step=problem.step, line=None if section is None else section.line)
        except DefinitionError as error:
            self._findings.add(str(error))
        self._findings.raise_any()
        raise AssertionError("a refusal without a problem")

    def build(self, given: TransportOptions) -> list[Transport]:
        """The transports that the file describes."""
        built = []
        for spec, step in self._specs.values():
            try:
                built.append(build(spec, given))
            except ValueError as error:
                self._findings.add(str(error), line=spec.line, step=step, key="await.transport")
        self._findings.raise_any()
        return built

    def _read(self, section: Section) -> None:
        name = _read_name(section, "appName" if section.has("appName") and not section.has("name") else "name") or ""
        self._findings.pipeline = name or None
        if section.has("appName"):
            section.refuse("version", VERSION_OF_FORMAT)
        section.refuse_all(NOT_HERE)
        section.pass_over(TOP)
        home = section.text("module")
        types = Importer(home)
        many = section.flag("takesMany")
        self._top = {
            "name": name, "version": section.whole("version", least=1, most=_HIGHEST_VERSION) or 1,
            "queue": section.text("queue") or "default", "takes_many": bool(many),
        }  # fmt: skip
        if home is not None:
            _check_module(section, types, home)
        taken = read_type(section, "input", types, required=False)
        for number, one in enumerate(section.sections("steps")):
            self._read_step(one, types)
            if number == 0 and self._parts:
                self._parts = [_taking(section, self._parts[0], taken)]
        section.finish()
        for step in self._given.keys() - self._sections.keys():
            section.problem(f"steps= has one for {step!r}, which is not in the file"
                            f"{near_miss(step, list(self._sections))}", "steps")  # fmt: skip

    def _read_step(self, section: Section, types: Importer) -> None:
        name = _read_name(section)
        if name is not None:
            section.step = name
            if name in self._sections:
                section.problem(f"another step, in line {self._sections[name].line}, has this name", "name")
            self._sections[name] = section
        for before in self._terminal:
            before.problem(f"is true, but {section.step or 'a step'!r} comes behind it", "terminal")
        self._terminal = [section] if section.flag("terminal") else []
        kind = section.choice("kind", _KINDS)
        section.refuse_all(NOT_HERE)
        if kind == "await":
            self._read_await(section, name or "", types)
        elif kind is not None or not section.has("kind"):
            part = StepReader(section, name or section.step or "", types, self._given).read()
            self._parts += [] if part is None else [part]

    def _read_await(self, section: Section, name: str, types: Importer) -> None:
        found = read_await_step(section, name, self._top["name"], types)
        if found is None:
            return
        await_step, spec = found
        self._parts.append(await_step)
        if spec is None:
            return
        other, step = self._specs.setdefault(spec.name, (spec, name))
        if not other.is_like(spec):
            self._findings.add(
                f"{step!r} describes a transport {spec.name!r} differently; describe it once, and name it elsewhere: "
                f"transport: {{name: {spec.name}}}", line=spec.line, step=name, key="await.transport",
            )  # fmt: skip


def _read_name(section: Section, key: str = "name") -> str | None:
    name = section.text(key, required=True)
    if name is not None and (problem := check_name(name, "the name")) is not None:
        section.problem(problem, key)
    return name


def _check_module(section: Section, types: Importer, home: str) -> None:
    try:
        types.find(f"{home}:__name__")
    except ValueError as error:
        section.problem(str(error), "module")


def _taking(section: Section, part: Part, given: Any) -> Part:
    """The first part, with the type at the top of the file."""
    if given in (Any, part.input):
        return part
    if part.input is not Any:
        section.problem(f"{shown(given)} is given here, but {part.name!r} takes {shown(part.input)}", "input")
        return part
    if isinstance(part, AwaitStep):
        return part
    return msgspec.structs.replace(part, input=given)
