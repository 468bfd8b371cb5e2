"""What is wrong with a pipeline: each problem with its step and key, and in a file with its line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PipelineProblem:
    """One problem and its place: `payments.yaml:12: step 'Ask bank': timeout: is missing`."""

    problem: str
    pipeline: str | None = None
    step: str | None = None
    key: str | None = None
    file: str | None = None
    line: int | None = None

    def __str__(self) -> str:
        step = None if self.step is None else f"step {self.step!r}"
        return ": ".join(part for part in (self._place, step, self.key, self.problem) if part is not None)

    @property
    def _place(self) -> str | None:
        if self.file is None:
            return None if self.pipeline is None else f"pipeline {self.pipeline!r}"
        return self.file if self.line is None else f"{self.file}:{self.line}"
