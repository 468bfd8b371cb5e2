"""The keys of a mapping in a YAML file: merged, known by their lines, and refused where nothing reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from stepwell.errors import InvalidPipeline
from stepwell.pipelines.problems import PipelineProblem


class Findings:
    """The problems of one file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.pipeline: str | None = None  # set when its name is read
        self.problems: list[PipelineProblem] = []
        self.notes: list[PipelineProblem] = []  # ignored keys, in a file that may be right
        self._flat: set[int] = set()

    def is_flat(self, node: Any) -> bool:
        """Whether this mapping was read before, through another alias: then it already has the merged keys."""
        was_read = id(node) in self._flat
        self._flat.add(id(node))
        return was_read

    def add(self, problem: str, *, line: int | None = None, step: str | None = None, key: str | None = None) -> None:
        self.problems.append(PipelineProblem(problem, self.pipeline, step, key, self.file, line))

    def raise_any(self) -> None:
        """Raise all of them together, from the top of the file to its end."""
        if self.problems:
            raise InvalidPipeline(sorted(self.problems, key=lambda problem: problem.line or 0))


class Keys:
    """The keys of one mapping. `path` is their prefix in problems: "await.transport."."""

    def __init__(self, loader: Any, node: Any, findings: Findings, *, path: str = "", step: str | None = None) -> None:
        self._loader = loader
        self._findings = findings
        self._path = path
        self._asked: dict[str, None] = {}  # in the order of reading
        self.step = step
        self.line: int = node.start_mark.line + 1
        self._nodes: dict[str, Any] = dict(self._read_keys(node))

    def problem(self, problem: str, key: str | None = None) -> None:
        """Report a problem of this mapping, or of one of its keys."""
        line = self.line_of(key) if key is not None else self.line
        named = self._path.removesuffix(".") if key is None else f"{self._path}{key}"
        self._findings.add(problem, line=line, step=self.step, key=named or None)

    @property
    def problems(self) -> int:
        """How many problems the whole file has so far."""
        return len(self._findings.problems)

    def line_of(self, key: str) -> int:
        node = self._nodes.get(key)
        return self.line if node is None else int(node.start_mark.line) + 1

    def has(self, key: str) -> bool:
        """Whether the key is there; `key:` without a value is."""
        self._asked[key] = None
        return key in self._nodes

    def refuse(self, key: str, why: str) -> None:
        """Refuse a key, with a reason."""
        if key in self._nodes:
            self.problem(why, key)
            del self._nodes[key]

    def refuse_all(self, keys: Mapping[str, str]) -> None:
        """Refuse keys that have no counterpart here, each with what to do."""
        for key, why in keys.items():
            self.refuse(key, f"has no counterpart here: {why}")

    def pass_over(self, keys: Mapping[str, str]) -> None:
        """Ignore keys that have no meaning here: noted, each with the reason."""
        for key, why in keys.items():
            if key in self._nodes:
                self._findings.notes.append(PipelineProblem(
                    f"is ignored: {why}", self._findings.pipeline, self.step, f"{self._path}{key}",
                    self._findings.file, self.line_of(key),
                ))  # fmt: skip
                del self._nodes[key]

    def keys(self) -> list[str]:
        return list(self._nodes)

    def finish(self) -> None:
        """Refuse the keys that were not read."""
        known = list(self._asked)
        for key in self._nodes:
            if key not in self._asked:
                self.problem(f"is unknown here{near_miss(key, known) or f' (known: {_joined(known)})'}", key)

    def _read_keys(self, node: Any) -> Iterator[tuple[str, Any]]:
        if not self._findings.is_flat(node):
            self._check_keys(node)
        try:
            self._loader.flatten_mapping(node)  # `<<: *defaults` goes first, so that own keys win
        except (RecursionError, self._loader.error) as error:  # what is merged is not a mapping, or is this one
            given = str(getattr(error, "problem", "merges itself, or is merged through too many others"))
            self._findings.add(given, line=self.line, step=self.step, key=f"{self._path}<<")
        for key_node, value in node.value:
            if (key := scalar(key_node)) is not None:
                yield key, value

    def _check_keys(self, node: Any) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = scalar(key_node), key_node.start_mark.line + 1
            if key is None:
                self._findings.add("a key must be text", line=line, step=self.step, key=self._path.removesuffix("."))
            elif key in seen:
                self._findings.add(f"is written twice, first in line {seen[key]}", line=line, step=self.step,
                                   key=f"{self._path}{key}")  # fmt: skip
            else:
                seen[key] = line


def near_miss(wrong: str, known: Sequence[str]) -> str:
    close = get_close_matches(wrong, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def kind_of(node: Any) -> str:
    return str(node.id)


def scalar(node: Any) -> str | None:
    return node.value.strip() or None if kind_of(node) == "scalar" else None


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names)
