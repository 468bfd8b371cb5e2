"""Functions and types that a pipeline's file names: "module:name", imported because its author wrote it there."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from typing import Any, Final

from stepwell.pipelines.yaml.keys import near_miss
from stepwell.pipelines.yaml.reader import DEEPEST

_PLAIN: Final[dict[str, Any]] = {kind.__name__: kind for kind in (str, int, float, bool, dict, list)} | {"any": Any}
_LIST: Final = re.compile(r"list\[(.+)\]")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")


class Importer:
    """Finds what a file names; a name alone is one of the file's `module`. ValueError says what is wrong."""

    def __init__(self, home: str | None = None) -> None:
        self._home = home

    def find(self, text: str) -> Any:
        """The object of this name."""
        module, colon, name = text.partition(":")
        if not colon:
            module, name = self._home or "", text
        if not module:
            raise ValueError(f"{text!r} is not of the form module:name; or name a module for the whole file: `module:`")
        if not (_NAME.fullmatch(module) and _NAME.fullmatch(name)):
            raise ValueError(f"{text!r} is not of the form module:name")
        found: Any = _import(module)
        for part in name.split("."):
            found = _held(found, part, f"{module} has no {name!r}")
        return found

    def find_type(self, text: str) -> Any:
        """A type: `shop.orders:Order`, `str`, `list[shop.orders:Order]`."""
        if text.count("[") > DEEPEST:
            raise ValueError(f"is a list nested more than {DEEPEST} levels deep")
        if (inner := _LIST.fullmatch(text)) is not None:
            return list[self.find_type(inner[1])]  # type: ignore[misc]  # a type known at run time
        if text in _PLAIN:
            return _PLAIN[text]
        found = self.find(text)
        if not isinstance(found, type) and not hasattr(found, "__origin__") and not hasattr(found, "__args__"):
            raise ValueError(f"{text!r} is not a type, but {_described(found)}")
        return found

    def find_function(self, text: str) -> Callable[..., Any]:
        """A callable that is not a class."""
        found = self.find(text)
        if isinstance(found, type) or not callable(found):
            raise ValueError(f"{text!r} is not a function, but {_described(found)}")  # noqa: TRY004 - of a text in a file
        return found  # type: ignore[no-any-return]  # callable was checked


def _import(name: str) -> Any:
    try:
        return sys.modules.get(name) or import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"there is no module {error.name!r}") from error
        raise ValueError(f"importing {name!r} failed: {error}") from error
    except (Exception, SystemExit) as error:  # the author's module may raise anything; a script ends by SystemExit
        problem = f"{type(error).__name__}: {error} ({_place(error, name)})"
        raise ValueError(f"importing {name!r} failed: {problem}") from error


def _held(holder: Any, part: str, problem: str) -> Any:
    """The attribute of a module or class; it may be made when it is looked up, by code that raises anything."""
    try:
        return getattr(holder, part)
    except AttributeError:
        raise ValueError(f"{problem}{near_miss(part, dir(holder))}") from None
    except Exception as error:
        raise ValueError(f"{problem}: {type(error).__name__}: {error}") from error


def _place(error: BaseException, module: str) -> str:
    """The last line of the module itself on the way to the error, or else the last of all."""
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).stem == module.rpartition(".")[2]]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
