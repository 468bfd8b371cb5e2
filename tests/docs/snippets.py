"""Runs the python blocks of one page, in order, in one namespace, as a reader would type them in."""

from __future__ import annotations

import ast
import asyncio
import io
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from inspect import CO_COROUTINE
from pathlib import Path

from tests.docs.pages import Block, blocks


async def run_page(page: Path, folder: Path) -> None:
    """Run every python block; what it prints is compared with the text block right after it."""
    found = blocks(page)
    with _module(page) as module, _importable(folder):
        for block, following in zip(found, [*found[1:], None], strict=True):
            if block.language != "python":
                continue
            printed = await _run(block, module, folder)
            if following is not None and following.language == "text" and block.not_run is None:
                assert printed == following.text, f"{block.where}: printed {printed!r}, shown is {following.text!r}"


async def _run(block: Block, module: types.ModuleType, folder: Path) -> str:
    """Run one block and return what it printed; a block marked as not run is only compiled."""
    source = "\n" * block.line + block.text  # so that tracebacks name the line of the page
    code = compile(source, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if block.not_run is not None:
        return ""
    if block.file_name is not None:
        (folder / block.file_name).write_text(block.text, "utf-8")
    output = io.StringIO()
    with redirect_stdout(output):
        if code.co_flags & CO_COROUTINE:
            await eval(code, vars(module))  # noqa: S307 - the snippets are ours
        else:
            await asyncio.to_thread(eval, code, vars(module))  # as a script, where no loop runs
    return output.getvalue()


@contextmanager
def _module(page: Path) -> Iterator[types.ModuleType]:
    """A module of the page's own: annotations are looked up in the module of their class."""
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        del sys.modules[module.__name__]


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Files that a page saves can be imported by its later blocks."""
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in set(sys.modules) - before:
            if (folder / f"{name}.py").exists():
                del sys.modules[name]
