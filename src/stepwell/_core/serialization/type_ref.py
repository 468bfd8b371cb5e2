"""Type references in JSON: "module:name", or [how, part, …] for a type that is composed of others.

Types are looked up only in modules that are imported already: a row must not cause an import. Functions are not looked
up here: a row names one of those that this process has declared (`reply_type`).
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, Final, Literal, Union, get_args, get_origin

_PLAIN: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, dict, list, tuple, set, frozenset)
}
_SINGLE: Final[dict[str, Any]] = {"none": types.NoneType, "any": Any, "...": Ellipsis, **_PLAIN}
_MADE: Final[dict[str, Callable[[tuple[Any, ...]], Any]]] = {
    "union": lambda parts: Union[parts],  # noqa: UP007 - of any number of parts
    **{kind.__name__: kind.__class_getitem__ for kind in (dict, list, tuple, set, frozenset)},
}


def shown(kind: Any) -> str:
    """The readable name of a type."""
    if get_origin(kind) is None and isinstance(kind, type):
        return kind.__qualname__
    if get_origin(kind) in (Union, types.UnionType):
        return " | ".join(shown(part) for part in get_args(kind))
    if (origin := get_origin(kind)) is not None and isinstance(origin, type) and get_args(kind):
        return f"{origin.__qualname__}[{', '.join(shown(part) for part in get_args(kind))}]"
    return str(kind).removeprefix("typing.")


def refer(kind: Any) -> Any:
    """The reference of a type; LookupError if no other process would find it."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ["literal", *parts]
    if origin is not None:
        how = "union" if origin in (Union, types.UnionType) else origin.__name__
        if how != "union" and _PLAIN.get(how) is not origin:
            raise LookupError(shown(kind))
        return [how, *(refer(part) for part in parts)]
    for name, single in _SINGLE.items():
        if kind is single:
            return [name]
    if not isinstance(kind, type) or "<locals>" in kind.__qualname__:
        raise LookupError(shown(kind))
    return f"{kind.__module__}:{kind.__qualname__}"


def resolve(reference: Any, home: str) -> Any:
    """The type of a reference; LookupError if this process has none. `home`: the module of the machine that asked."""
    if isinstance(reference, str):
        return _named(reference, home)
    how, *parts = reference
    if how == "literal":
        return Literal[tuple(parts)]
    if not parts:
        return _SINGLE[how]
    return _MADE[how](tuple(resolve(part, home) for part in parts))


def refer_function(function: Callable[..., Any]) -> str:
    """The reference of a function; LookupError if no other process would find it."""
    name = getattr(function, "__qualname__", "<lambda>")
    if "<" in name:  # <locals>, <lambda>
        raise LookupError(name)
    return f"{function.__module__}:{name}"


def split(reference: str) -> tuple[str, str]:
    """The module of a reference, and the name in it."""
    module, _, name = reference.partition(":")
    return module, name


def held_by(module: str, name: str) -> Any:
    """The object that an imported module has under this name, at its top or in a class; None if there is none. The
    lookup runs no code: a module's `__getattr__` might import another module."""
    first, *inner = name.split(".")
    found = inspect.getattr_static(sys.modules.get(module), first, None)
    for part in inner:
        found = inspect.getattr_static(found, part, None) if isinstance(found, type) else None
    return found


def _named(reference: str, home: str) -> type:
    """A class of an imported module; a class of another process's script may be in the machine's module here."""
    module, name = split(reference)
    for place in (home, module) if module == "__main__" else (module, home):
        if isinstance(found := held_by(place, name), type):
            return found
    raise LookupError(name)
