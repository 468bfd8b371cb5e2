"""Reads the values of a YAML file by their keys; problems are collected with their lines."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from stepwell.errors import MissingExtra
from stepwell.pipelines.yaml.keys import Findings, Keys, kind_of, near_miss, scalar

LONGEST = timedelta(days=36_500)
DEEPEST = 50  # mappings and lists inside one another
MOST_MERGED = 100_000  # keys, in all mappings of a file: ten merges of ten others each have ten times as many


class Section(Keys):
    """One mapping of a file, read value by value: a wrong one is a problem, and read as None."""

    def value(self, key: str, *, required: bool = False) -> Any:
        """The value of a scalar, as YAML reads it; None if it is missing."""
        if not self.has(key):
            if required:
                self.problem("is missing", key)
            return None
        node = self._nodes[key]
        if kind_of(node) != "scalar":
            self._unexpected(key, "one value")
            return None
        try:
            found = self._loader.construct_object(node)
        except Exception as error:  # noqa: BLE001 - of `!!int ""` or `!!bool x` PyYAML raises whatever its code meets
            self._unexpected(key, f"a plain value ({getattr(error, 'problem', error)})")
            return None
        if found is None:
            self._unexpected(key, "a value")
        return found

    def text(self, key: str, *, required: bool = False) -> str | None:
        found = self.value(key, required=required)
        if found is None:
            return None
        if not isinstance(found, str):
            self._unexpected(key, "text; put it into quotes")
            return None
        if not found.strip():
            self._unexpected(key, "text")
        return found.strip() or None

    def whole(self, key: str, *, least: int, most: int) -> int | None:
        found = self.value(key)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            self._unexpected(key, f"a whole number from {least:,} to {most:,}")
            return None
        return found

    def flag(self, key: str) -> bool | None:
        found = self.value(key)
        if found is None or isinstance(found, bool):
            return found
        self._unexpected(key, "true or false")
        return None

    def choice(self, key: str, known: Sequence[str], *, required: bool = False) -> str | None:
        found = self.text(key, required=required)
        if found is None or found in known:
            return found
        self.problem(f"{found!r} is none of {', '.join(known)}{near_miss(found, known)}", key)
        return None

    def duration(self, key: str, *, required: bool = False) -> timedelta | None:
        """ISO 8601, above zero: PT5M, P1DT12H."""
        found = self.value(key, required=required)
        if found is None:
            return None
        try:
            read = msgspec.convert(found, timedelta)
        except msgspec.ValidationError:
            read = None
        if read is None or not isinstance(found, str):
            self._unexpected(key, "a duration in ISO 8601, as PT30S, PT5M or P1DT12H")
            return None
        if not timedelta(0) < read <= LONGEST:
            self._unexpected(key, f"a duration above zero, at most P{LONGEST.days}D")
            return None
        return read

    def texts(self, key: str) -> list[str] | None:
        """A list of texts that is not empty."""
        if not self.has(key):
            return None
        node = self._nodes[key]
        found = [scalar(one) for one in node.value] if kind_of(node) == "sequence" else []
        if not found or not all(found):
            self._unexpected(key, "a list of names, as [orderId]")
            return None
        return [text for text in found if text is not None]

    def named_texts(self, key: str) -> dict[str, str]:
        """A mapping of names to texts, such as headers."""
        inner = self.section(key)
        return {} if inner is None else {name: text for name in inner.keys() if (text := inner.text(name)) is not None}  # noqa: SIM118 - it is not a mapping

    def section(self, key: str, *, required: bool = False) -> Section | None:
        """The mapping under a key."""
        if not self.has(key):
            if required:
                self.problem("is missing", key)
            return None
        node = self._nodes[key]
        if kind_of(node) != "mapping":
            self._unexpected(key, "a mapping of keys")
            return None
        return Section(self._loader, node, self._findings, path=f"{self._path}{key}.", step=self.step)

    def sections(self, key: str) -> list[Section]:
        """The mappings of a list, each with all keys unread."""
        if not self.has(key):
            self.problem("is missing", key)
            return []
        node = self._nodes[key]
        if kind_of(node) != "sequence" or not node.value:
            self._unexpected(key, "a list with at least one step")
            return []
        return [one for number, item in enumerate(node.value) if (one := self._entry(key, number, item)) is not None]

    def _entry(self, key: str, number: int, node: Any) -> Section | None:
        label = f"#{number + 1}"
        if kind_of(node) != "mapping":
            self._findings.add("expected a mapping of keys", line=node.start_mark.line + 1, step=label, key=key)
            return None
        return Section(self._loader, node, self._findings, step=label)

    def _unexpected(self, key: str, expected: str) -> None:
        self.problem(f"expected {expected}, got {_shown(self._nodes[key])}", key)


def open_file(path: Path, findings: Findings) -> Section | None:
    """The mapping at the top of a file; None, with a problem, if there is none."""
    yaml = import_yaml()
    try:
        loader = _loader_class(yaml)(path.read_text("utf-8"))
        loader.error = yaml.YAMLError
        node = loader.get_single_node()
    except (OSError, UnicodeDecodeError) as error:
        findings.add(f"cannot be read: {error.strerror if isinstance(error, OSError) else 'it is not UTF-8'}")
        return None
    except _TooDeep as error:
        findings.add(f"is nested more than {DEEPEST} levels deep; nothing in a pipeline is", line=error.line)
        return None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        findings.add(f"is not YAML: {getattr(error, 'problem', None) or error}",
                     line=None if mark is None else mark.line + 1)  # fmt: skip
        return None
    except (ValueError, OverflowError) as error:  # "\UFFFFFFFF", a version of 5,000 digits, a path with a NUL
        findings.add(f"is not YAML: {error}")
        return None
    if node is None or kind_of(node) != "mapping":
        findings.add("expected a mapping with name and steps" + (", the file is empty" if node is None else ""))
        return None
    return Section(loader, node, findings)


class _TooDeep(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


def _loader_class(yaml: Any) -> Any:
    """PyYAML's safe loader, which composes recursively, with limits on the depth and on merged keys."""

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # its package may be missing
        depth = 0
        merged = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.depth > DEEPEST:
                raise _TooDeep(self.peek_event().start_mark.line + 1)
            self.depth += 1
            try:
                return super().compose_node(parent, index)
            finally:
                self.depth -= 1

        def flatten_mapping(self, node: Any) -> None:
            super().flatten_mapping(node)
            self.merged += len(node.value)
            if self.merged > MOST_MERGED:
                raise yaml.constructor.ConstructorError(
                    problem=f"merges more than {MOST_MERGED:,} keys; nothing in a pipeline does"
                )

    return Loader


def import_yaml() -> Any:
    """PyYAML, of the extra "yaml"."""
    try:
        return import_module("yaml")
    except ModuleNotFoundError as error:
        raise MissingExtra("yaml", "a pipeline in a YAML file") from error


def _shown(node: Any) -> str:
    if kind_of(node) != "scalar":
        return {"mapping": "a mapping", "sequence": "a list"}[kind_of(node)] if node.value else "nothing"
    return repr(node.value)[:100] if node.value else "nothing"
