"""Figures of packages, classes and statements, read from the source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.quality.figure import SOURCE, Figure, excepted, relative

# A move of packages changes these.
WORKER = ("_worker", "_runtime")  # the worker's package: the first of these that exists
NO_STATEMENTS = {"migrations", "schema.sql"}  # SQL files that hold a schema
WAKEUPS = "Wakeups"  # the one object through which a worker's services call each other back

MOST_CALLBACKS = 10
MOST_MODULES = 12
MOST_ATTRIBUTES = 12
MOST_METHODS = 15
LONGEST_STATEMENT = 90

FOLDER_EXCEPTIONS = {
    "_cli/commands": "one file per command, found by its name",
    "contrib/django/migrations": "one file per migration",
    ".": "the public modules, one noun each; underscore packages are beside them",
}
CLASS_EXCEPTIONS = {  # public façades, and rows of statements
    **dict.fromkeys(("Engine", "SyncEngine"), "what a program calls: one method per operation"),
    **dict.fromkeys(("Kafka", "Nats", "Sqs", "Webhook"), "a transport keeps the options that it is given"),
    **dict.fromkeys(
        ("Job", "Ask", "AskEach", "AwaitStep", "StartOptions"), "declared by authors: one field per option"
    ),
    **dict.fromkeys(("Settings", "Context", "Event", "Instance", "Interaction"), "public records: one field per fact"),
    "Dispatch": "public record: what a transport sends, one field per fact",
    "LimitRow": "public record: what engine.limits.list() returns, one field per column",
    "Claim": "a row as a worker has claimed it, one field per column",
    "_Outcome": "a row that instances/commit reads from JSON, one field per column",
    "EmbeddedServer": "start, join and stop of the server, which is used alone too",
    "Harness": "the test kit's one object",
}
RECORD = " (record)"


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), path.name)


def modules(folder: Path = SOURCE) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def classes(path: Path) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef))


def functions(of: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def words_of(node: ast.AST | None) -> set[str]:
    """The names within an annotation, also within one that is written as text."""
    found: set[str] = set()
    for part in ast.walk(node) if node is not None else ():
        match part:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                found.add(name)
            case ast.Constant(value=str(text)):
                found.update(re.findall(r"\w+", text))
    return found


def is_record(of: ast.ClassDef) -> bool:
    """Made of declared fields: a dataclass, NamedTuple, TypedDict or struct."""
    marks = {name for node in (*of.bases, *of.decorator_list) for name in words_of(node)}
    return bool(marks & {"dataclass", "NamedTuple", "TypedDict", "Struct"})


def fields(of: ast.ClassDef) -> list[ast.AnnAssign]:
    return [node for node in of.body if isinstance(node, ast.AnnAssign) and "ClassVar" not in words_of(node.annotation)]


@cache
def imported(path: Path) -> dict[str, tuple[str, str]]:
    """What a module takes from others of the library: its name there -> module and name."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


def callables() -> dict[str, set[str]]:
    """By module, the names in it of types with callable values: Callable, aliases of it, protocols of `__call__`."""
    known = {dotted(path): {"Callable"} for path in modules()}
    aliases = []
    for path in modules():
        for node in tree(path).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name[0].isupper():
                    aliases.append((dotted(path), name, words_of(value)))
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    aliases.append((dotted(path), name, words_of(value)))
                case ast.ClassDef(name=name) if [one.name for one in functions(node)] == ["__call__"]:
                    known[dotted(path)].add(name)
    before = 0
    while before != (before := sum(map(len, known.values()))):
        for module, name, parts in aliases:
            if parts & known[module]:
                known[module].add(name)
        for path in modules():
            names = imported(path).items()
            known[dotted(path)] |= {name for name, (module, there) in names if there in known.get(module, ())}
    return known


def worker_package() -> Path:
    return next(SOURCE / name for name in WORKER if (SOURCE / name).is_dir())


def parameters(of: ast.ClassDef) -> Iterator[tuple[str, ast.expr | None]]:
    """The constructor's parameters, or a record's fields."""
    for function in functions(of):
        if function.name == "__init__":
            given = function.args
            yield from ((one.arg, one.annotation) for one in (*given.posonlyargs, *given.args, *given.kwonlyargs))
    if is_record(of):
        yield from ((ast.unparse(one.target), one.annotation) for one in fields(of))


def callbacks() -> Figure:
    called = callables()
    package = worker_package()
    items = [
        f"{relative(path)}: {of.name}({name}: {ast.unparse(kind)})"
        for path in modules(package)
        for of in classes(path)
        for name, kind in parameters(of)
        if kind is not None and words_of(kind) & called[dotted(path)] and of.name != WAKEUPS
    ]
    return Figure(
        f"callback parameters in {package.name}", str(len(items)), f"<= {MOST_CALLBACKS}", len(items) <= MOST_CALLBACKS,
        items,
    )  # fmt: skip


def folders() -> Figure:
    counts = Counter(relative(path.parent) for path in modules() if path.name != "__init__.py")
    most = max(n for folder, n in counts.items() if folder not in FOLDER_EXCEPTIONS)
    large = {folder: n for folder, n in counts.most_common() if n > MOST_MODULES}
    counted = {folder: n for folder, n in large.items() if folder not in FOLDER_EXCEPTIONS}
    reasons = {f"{n} in {folder}": FOLDER_EXCEPTIONS[folder] for folder, n in large.items() if folder not in counted}
    return Figure(
        "modules of the largest flat folder", str(most), f"<= {MOST_MODULES}", not counted,
        [f"{n:4}  {folder}" for folder, n in counted.items()], excepted(reasons),
    )  # fmt: skip


def attributes(of: ast.ClassDef) -> set[str]:
    """What instances keep: declared fields, slots, and what any method assigns to self."""
    found = {ast.unparse(one.target) for one in fields(of)}
    for node in ast.walk(of):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def large_classes() -> Figure:
    items, reasons = [], {}
    for path in modules():
        for of in classes(path):
            kept, methods = len(attributes(of)), len(functions(of))
            if kept <= MOST_ATTRIBUTES and methods <= MOST_METHODS:
                continue
            said = f"{of.name}: {kept} attributes, {methods} methods"
            if of.name in CLASS_EXCEPTIONS:
                reasons[of.name] = CLASS_EXCEPTIONS[of.name]
            else:
                items.append(f"{relative(path)}: {said}{RECORD if is_record(of) else ''}")
    records = sum(item.endswith(RECORD) for item in items)
    return Figure(
        f"classes with more than {MOST_ATTRIBUTES} attributes or {MOST_METHODS} methods", str(len(items)), "0",
        not items, items, (f"of them {records} records, which have fields only", *excepted(reasons)),
    )  # fmt: skip


def statements() -> Figure:
    lengths: dict[str, tuple[int, int]] = {}
    for path in sorted(SOURCE.rglob("*.sql")):
        if not NO_STATEMENTS & set(path.relative_to(SOURCE).parts):
            lines = path.read_text().strip().splitlines()
            code = [line for line in lines if line.strip() and not line.lstrip().startswith("--")]
            lengths[relative(path)] = (len(lines), len(code))
    longest = max(lengths, key=lambda path: lengths[path])
    too_long = [path for path, (whole, _) in lengths.items() if whole > LONGEST_STATEMENT]
    return Figure(
        "lines of the longest SQL statement", f"{lengths[longest][0]}", f"<= {LONGEST_STATEMENT}", not too_long,
        [f"{lengths[path][0]:4} lines, {lengths[path][1]:3} without comments  {path}"
         for path in sorted(too_long, key=lambda path: -lengths[path][0])],
    )  # fmt: skip
