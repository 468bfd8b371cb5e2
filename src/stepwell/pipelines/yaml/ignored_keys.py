"""Keys of the Pipeline Framework's files that have no meaning here: ignored with a note, or refused."""

from __future__ import annotations

from typing import Final

_CLASS_IS_JSON: Final = "a class is its own JSON"
_FIELDS: Final = "types are classes, with their fields"
_NO_ADAPTERS: Final = "nothing is generated; steps are functions in a worker's process"
_ONE_BY_ONE: Final = "items go through a step one by one"
_NO_ROLES: Final = "it only describes"

TOP: Final = {
    "basePackage": "modules are named by module:",
    "transport": _NO_ADAPTERS,
    "platform": _NO_ADAPTERS,
    "runtimeLayout": _NO_ADAPTERS,
    "messages": _FIELDS,
    "unions": "a union is one of Python's: A | B",
}
"""Keys of a file that say how code is generated. Ignored."""

STEP: Final = {
    "id": "a step is known by its name",
    **dict.fromkeys(("inboundMapper", "outboundMapper", "operatorMapper", "externalMapper", "mapperFallback"),
                    _CLASS_IS_JSON),
    **dict.fromkeys(("inputFields", "outputFields"), _FIELDS),
    **dict.fromkeys(("batchSize", "batchTimeoutMs", "parallel"), _ONE_BY_ONE),
    **dict.fromkeys(("flowRole", "flowBoundaryRationale"), _NO_ROLES),
}  # fmt: skip
"""Keys of an ordinary step. Ignored."""

AWAIT: Final = {key: why for key, why in STEP.items() if "Mapper" not in key and key != "mapperFallback"}
"""Keys of an await step, which has no mappers there either."""

NOT_NEEDED: Final = TOP | STEP

NOT_HERE: Final = {
    "aspects": "a step has to do itself what an aspect did around it; remove it then",
    "materialization": "a step has to read and write objects itself; remove it then",
    "execution": "a step is a function in the worker's process, and has to call remote code itself; remove it then",
}
"""Keys that would change what happens: refused, so that the author decides."""

VERSION_OF_FORMAT: Final = (
    "is that of the file's format beside appName; remove it. With name: instead of appName: it is the version of the "
    "pipeline"
)
