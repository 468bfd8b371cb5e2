"""Runs the python blocks of one page, in order, in one namespace, as a reader would type them in."""

from __future__ import annotations

import ast
import asyncio
import io
import sys
import types
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from inspect import CO_COROUTINE
from pathlib import Path

from tests.quality.docs.pages import ROOT, Block, blocks


async def run_page(page: Path, folder: Path) -> None:
    """Run every python block; what it prints is compared with the text block right after it."""
    found = blocks(page)
    with _module(page) as module, _importable(folder):
        for block, following in zip(found, [*found[1:], None], strict=True):
            if block.language == "yaml" and block.file_name is not None:
                _save(block, folder)
            if block.language != "python":
                continue
            printed = await _run(block, module, folder)
            if following is not None and following.language == "text" and block.not_run is None:
                assert printed == following.text, f"{block.where}: printed {printed!r}, shown is {following.text!r}"


async def run_page_apart(page: Path, folder: Path) -> None:
    """The same in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.quality.docs.snippets", str(page), str(folder), cwd=ROOT, stdout=PIPE,
        stderr=STDOUT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def _run(block: Block, module: types.ModuleType, folder: Path) -> str:
    """Run one block and return what it printed; a block marked as not run is only compiled."""
    source = "\n" * block.line + block.text  # so that tracebacks name the line of the page
    code = compile(source, str(block.page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if block.not_run is not None:
        return ""
    if block.file_name is not None:
        _save(block, folder)
    output = io.StringIO()
    with redirect_stdout(output):
        if code.co_flags & CO_COROUTINE:
            await eval(code, vars(module))  # noqa: S307 - the snippets are ours
        else:
            await asyncio.to_thread(eval, code, vars(module))  # as a script, where no loop runs
    return output.getvalue()


def _save(block: Block, folder: Path) -> None:
    saved = folder / str(block.file_name)
    saved.parent.mkdir(parents=True, exist_ok=True)
    saved.write_text(block.text, "utf-8")


@contextmanager
def _module(page: Path) -> Iterator[types.ModuleType]:
    """A module of the page's own: annotations are resolved in the module of their class."""
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


if __name__ == "__main__":
    _page, _folder = Path(sys.argv[1]), Path(sys.argv[2])
    for _block in blocks(_page):
        if _block.file_name is not None:  # a framework that is set up reads all files of a project at once
            _save(_block, _folder)
    asyncio.run(run_page(_page, _folder))
