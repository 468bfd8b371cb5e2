"""Types by where they are defined, in JSON: "module:name", or [how, part, …] for what is made of others.

They are looked up in what is imported already: nothing is imported because a row names it.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, Final, Literal, Union, get_args, get_origin

_PLAIN: Final[dict[str, Any]] = {
    kind.__name__: kind for kind in (str, int, float, bool, bytes, dict, list, tuple, set, frozenset)
}
_SINGLE: Final[dict[str, Any]] = {"none": types.NoneType, "any": Any, "...": Ellipsis, **_PLAIN}
_MADE: Final[dict[str, Callable[[tuple[Any, ...]], Any]]] = {
    "union": lambda parts: Union[parts],  # noqa: UP007 - of as many as there are
    **{kind.__name__: kind.__class_getitem__ for kind in (dict, list, tuple, set, frozenset)},
}


def shown(kind: Any) -> str:
    """A type as people call it."""
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
        module, _, name = reference.partition(":")
        return _named(module, name, home, lambda found: isinstance(found, type))
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


def resolve_function(reference: str, home: str) -> Callable[..., Any]:
    """The function of a reference; LookupError if this process has none."""
    module, _, name = reference.partition(":")
    return _named(module, name, home, callable)  # type: ignore[no-any-return]  # callable, as was asked


def _named(module: str, name: str, home: str, is_right: Callable[[Any], bool]) -> Any:
    """Something of a module that is imported; what was a script's own may be the machine's module here."""
    for place in (home, module) if module == "__main__" else (module, home):
        found: Any = sys.modules.get(place)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None and is_right(found):
            return found
    raise LookupError(name)
