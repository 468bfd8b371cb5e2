"""`stepwell pipelines`: check pipelines in YAML, or draw one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from stepwell._cli.exit_codes import OK, USAGE, UsageError
from stepwell._cli.output import Paint, printable, to_json
from stepwell.errors import InvalidPipeline
from stepwell.pipelines import Pipeline, PipelineProblem
from stepwell.pipelines.yaml.load import read, read_with_notes

EXAMPLES = """\
examples:
  stepwell pipelines check payments.yaml
  stepwell pipelines check --json pipelines/*.yaml
  stepwell pipelines show payments.yaml
  stepwell pipelines show payments.yaml --svg payments.svg

The modules that a file names are imported; the current directory is searched first. No connection and no database is
needed. Exit code 2 if a file has problems: all of them are shown. --json prints JSON lines: one object per file."""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("act", metavar="check|show", choices=("check", "show"), help="find problems, or draw one")
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a pipeline in YAML")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="with show: draw SVG into this file; - for stdout")
    parser.add_argument("--json", action="store_true", help="print JSON lines, with check")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.act == "check" and args.svg is not None:
        raise UsageError("--svg belongs to: stepwell pipelines show FILE")
    if args.act == "show" and (args.json or len(args.files) > 1):
        raise UsageError("--json belongs to check" if args.json else "show takes one FILE")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _show(read(args.files[0]), args.svg) if args.act == "show" else _check(args.files, as_json=args.json)


def _check(files: list[Path], *, as_json: bool) -> int:
    code = OK
    for file in files:
        problems: tuple[PipelineProblem, ...] = ()
        pipeline = None
        notes: list[PipelineProblem] = []
        try:
            pipeline, notes = read_with_notes(file)
        except InvalidPipeline as error:
            problems = error.problems
            code = USAGE
        if as_json:
            print(to_json(_record(file, pipeline, problems, notes)))
        else:
            for line in (*_lines(file, pipeline, problems), *_note_lines(notes)):
                print(line)
    return code


def _lines(file: Path, pipeline: Pipeline | None, problems: tuple[PipelineProblem, ...]) -> Iterator[str]:
    paint = Paint.of(sys.stdout)
    if pipeline is not None:
        asking = sum(segment.exit is not None for segment in pipeline.segments)
        counts = f"{_counted(len(pipeline.parts), 'step')}, {_counted(asking, 'await step')}"
        yield f"{printable(str(file))}: {paint('ok', 'green')}: {printable(pipeline.name)}, {counts}"
        return
    for problem in problems:
        yield paint(printable(str(problem)), "red")


def _note_lines(notes: list[PipelineProblem]) -> Iterator[str]:
    """One line for each ignored key, however often it is written."""
    lines: dict[tuple[str, str | None, str], list[int]] = {}
    for note in notes:
        lines.setdefault((str(note.file), note.key, note.problem), []).append(note.line or 0)
    for (file, key, problem), (first, *more) in lines.items():
        also = f", also in line {', '.join(map(str, more))}" if more else ""
        yield printable(f"{file}:{first}: note: {key}: {problem}{also}")


def _record(
    file: Path, pipeline: Pipeline | None, problems: tuple[PipelineProblem, ...], notes: list[PipelineProblem]
) -> dict[str, object]:
    return {
        "file": str(file), "ok": not problems, "pipeline": None if pipeline is None else pipeline.name,
        "version": None if pipeline is None else pipeline.version,
        "problems": [asdict(problem) for problem in problems], "notes": [asdict(note) for note in notes],
    }  # fmt: skip


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _show(pipeline: Pipeline, svg: Path | None) -> int:
    if svg is None:
        print(pipeline.diagram(), end="")
    elif str(svg) == "-":
        print(pipeline.svg(), end="")
    else:
        try:
            svg.write_text(pipeline.svg(), "utf-8")
        except OSError as error:
            raise UsageError(f"--svg {svg}: {error.strerror}") from error
        print(f"wrote {svg}")
    return OK
