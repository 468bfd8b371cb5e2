"""Reads a tree of modules: its functions, the meaning of names in them, and the text of their strings."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from stepwell._store.connection.gaps import label

AnyFunction: TypeAlias = ast.AsyncFunctionDef | ast.FunctionDef
HOLE = "\0"  # in the text of an f-string, for the parts known only at run time


@dataclass
class Module:
    """One file, and the meaning of its names."""

    name: str
    tree: ast.Module
    imports: dict[str, str]
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in ast.walk(self.tree):
            self.parents.update(dict.fromkeys(ast.iter_child_nodes(node), node))


@dataclass
class Function:
    """A function of a module, or a method of one of its classes; with everything defined inside it."""

    name: str
    node: AnyFunction
    owner: str  # its module, or its class
    module: Module

    @property
    def is_manager(self) -> bool:
        return any(getattr(d, "id", "") == "asynccontextmanager" for d in self.node.decorator_list)

    @property
    def parameters(self) -> list[str]:
        """By position, without `self`."""
        given = self.node.args
        return [arg.arg for arg in [*given.posonlyargs, *given.args] if arg.arg not in {"self", "cls"}]

    def full_name(self, called: ast.expr) -> str | None:
        """The full name of the called function, as far as the text tells."""
        match called:
            case ast.Name(id=name):
                return self.module.imports.get(name, f"{self.module.name}.{name}")
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                return f"{self.owner}.{name}"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self.module.imports:
                return f"{self.module.imports[module]}.{name}"
        return None

    def where(self, node: ast.AST) -> str:
        return f"{self.name}, line {getattr(node, 'lineno', self.node.lineno)}"


class Source:
    """The modules below a folder, which is a package."""

    def __init__(self, folder: Path, skipped: frozenset[str] = frozenset()) -> None:
        self.modules: list[Module] = []
        self.functions: dict[str, Function] = {}
        self._constants: dict[str, ast.expr] = {}
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            if skipped.isdisjoint(parts):
                self._read(path, ".".join(parts).removesuffix(".__init__"))

    def _read(self, path: Path, name: str) -> None:
        tree = ast.parse(path.read_text("utf-8"))
        module = Module(name, tree, _imports(tree))
        self.modules.append(module)
        self.functions.update({function.name: function for function in _functions(tree, name, module)})
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=variable)], value=value):
                    self._constants[f"{name}.{variable}"] = value
                case ast.AnnAssign(target=ast.Name(id=variable), value=ast.expr() as value):
                    self._constants[f"{name}.{variable}"] = value

    def text(self, expression: ast.expr, module: Module) -> str | None:
        """The text of a string, with holes for parts known only at run time; None if it is none that the source has."""
        match expression:
            case ast.Constant(value=str(text)):
                return text
            case ast.FormattedValue(value=value):
                return self.text(value, module) or HOLE
            case ast.JoinedStr(values=values):
                return "".join(self.text(value, module) or HOLE for value in values)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return (self.text(left, module) or HOLE) + (self.text(right, module) or HOLE)
            case ast.Name(id=name):
                full = module.imports.get(name, f"{module.name}.{name}")
                found = self._constants.get(full)
                return None if found is None else self.text(found, self._module_of(full, module))
        return None

    def _module_of(self, full: str, here: Module) -> Module:
        return next((module for module in self.modules if module.name == full.rpartition(".")[0]), here)

    def label(self, expression: ast.expr, module: Module) -> str | None:
        """How the transaction calls a script; None if the source does not tell."""
        text = self.text(expression, module)
        shown = None if text is None else label(text)
        return None if shown is None or HOLE in shown else shown


def _imports(tree: ast.Module) -> dict[str, str]:
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip


def _functions(tree: ast.AST, owner: str, module: Module) -> Iterator[Function]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{owner}.{node.name}", module)
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            yield Function(f"{owner}.{node.name}", node, owner, module)
        else:  # under an `if`, say
            yield from _functions(node, owner, module)
