"""Lists every transaction of several statements that the engine opens, and its statements, from the source.

A construct that the listing cannot follow is a problem, and never a transaction that it leaves out. An SQL function is
one statement from outside: its work is complete, or undone, when its process stops. So `connection=` calls, which send
one SQL function each inside of a caller's transaction, are not listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tests.crash.stops.source import HOLE, Function, Module, Source

# The methods of a session, and the statement that each sends, if that is always the same.
SENDERS = {
    "fetch": "", "run": "", "copy": "", "allow": "set local statement_timeout", "bound_waits": "set local lock_timeout",
}  # fmt: skip
# The ways to open a transaction, and the statement that each sends first.
SENT_FIRST = {"anew": "set local plan_cache_mode", "is_long": "set local statement_timeout"}
OPENERS = {"transaction", "begin_nested", "atomic"}  # methods that open one, on any object
RAW = {
    "execute", "executemany", "fetchrow", "fetchval", "fetchmany", "prepare", "cursor", "exec_driver_sql", "scalar",
    "scalars", "copy_to_table", "copy_from_table", "copy_from_query", "copy_records_to_table",
}  # fmt: skip
CONTROL = re.compile(
    r"(^|;)\s*(begin|start\s+transaction|commit|rollback|abort|savepoint\s+\w+|prepare\s+transaction)"
    r"(\s+(work|transaction|to|and|isolation|read|prepared)\b[^;]*|\s+'[^;]*)?\s*(;|\0|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Known:
    """The exceptions given for a source: tables of functions, each with a reason.

    One that names nothing is a problem.
    """

    on_the_driver: Mapping[str, str] = field(default_factory=dict)  # they open transactions on the driver itself
    on_bare_connections: Mapping[str, str] = field(default_factory=dict)  # they send past sessions
    makers: Mapping[str, str] = field(default_factory=dict)  # they make sessions
    speakers: Mapping[str, str] = field(default_factory=dict)  # they have BEGIN or COMMIT in a text
    scripts: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by names of statements in the text
    of_a_step: str = ""  # the name of the transaction with a session that is an attribute of it, not a variable


class Listing:
    """The transactions of a source, and what in it could hide one."""

    def __init__(self, source: Source, known: Known) -> None:
        self._source = source
        self._known = known
        self._problems: set[str] = set()

    @property
    def problems(self) -> list[str]:
        """The problems that keep the listing from being whole."""
        self._problems = set()
        for function in self._source.functions.values():
            self._follow(function.name, self._own(function), set())
            self._look_at(function)
        for module in self._source.modules:
            self._look_at_text(module)
            self._look_outside_functions(module)
        self._look_at_known()
        return sorted(self._problems)

    @cached_property
    def transactions(self) -> dict[str, set[str]]:
        """The statements of each transaction, by the full name of the function that opens it."""
        listed = {}
        for function in self._source.functions.values():
            if not function.is_manager and function.name not in self._known.on_the_driver:
                opened = list(self._openings(function))
                if opened:
                    listed[function.name] = self._sent(function.name, self._variables(function), opened)
        if self._known.of_a_step:
            listed[self._known.of_a_step] = self._of_a_step()
        return listed

    def _sent(self, name: str, variables: frozenset[str], opened: list[ast.Call]) -> set[str]:
        found = set(self._follow(name, variables, set()))
        for call in opened:
            manager = self._manager(self._source.functions[name], call)
            if manager is None:
                found |= {SENT_FIRST[word.arg] for word in call.keywords if word.arg in SENT_FIRST}
            else:
                found |= self._sent(manager.name, self._variables(manager), list(self._openings(manager)))
        return found

    def _of_a_step(self) -> set[str]:
        """The statements sent by every function that gets the session of a step's transaction."""
        found: set[str] = set()
        for function in self._source.functions.values():
            found |= self._follow(function.name, self._begun(function), set())
        return found

    @cached_property
    def _managers(self) -> dict[str, Function]:
        """The context managers that open transactions for their callers, by their full names."""
        found: dict[str, Function] = {}
        while True:
            more = {
                function.name: function for function in self._source.functions.values()
                if function.is_manager and function.name not in found and function.node.name not in OPENERS
                and (function.name in self._known.on_the_driver or list(self._openings(function, found)))
            }  # fmt: skip
            if not more:
                return found
            found |= more

    def _manager(
        self, function: Function, call: ast.Call, among: Mapping[str, Function] | None = None
    ) -> Function | None:
        managers = self._managers if among is None else among
        full = function.full_name(call.func)
        if full in managers:
            return managers[full]
        last = getattr(call.func, "attr", "")  # of an object with a class that the text does not tell
        return next((one for name, one in managers.items() if last and name.endswith(f".{last}")), None)

    def _openings(self, function: Function, managers: Mapping[str, Function] | None = None) -> Iterator[ast.Call]:
        """The calls by which a function opens transactions."""
        for item in _entered(function.node):
            match item.context_expr:
                case ast.Call(func=ast.Attribute(attr=name)) as call if name in OPENERS:
                    yield call
                case ast.Call() as call if self._manager(function, call, managers) is not None:
                    yield call

    def _variables(self, function: Function) -> frozenset[str]:
        """The names that a function gives to sessions of transactions that it opens."""
        opened = [id(call) for call in self._openings(function)]
        named = [item.optional_vars for item in _entered(function.node)
                 if id(item.context_expr) in opened and self._gives_session(function, item.context_expr)]
        return frozenset(variable.id for variable in named if isinstance(variable, ast.Name))

    def _gives_session(self, function: Function, call: ast.expr) -> bool:
        """Whether a caller that enters this gets the session: some managers keep it to themselves."""
        manager = self._manager(function, call) if isinstance(call, ast.Call) else None
        if manager is None:
            return True
        own = self._own(manager)
        return any(isinstance(node, ast.Yield) and node.value is not None and _is_session(node.value, own)
                   for node in ast.walk(manager.node))

    def _own(self, function: Function) -> frozenset[str]:
        """The names that a function gives to sessions, however it got them."""
        made = {
            node.targets[0].id for node in ast.walk(function.node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "Session"
        }  # fmt: skip
        return self._variables(function) | self._begun(function) | made

    def _begun(self, function: Function) -> frozenset[str]:
        """The names that a function gives to the objects that begin the transaction of a step."""
        return frozenset(
            node.targets[0].id for node in ast.walk(function.node)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            and isinstance(node.value, ast.Await) and _is_begin(node.value.value)
        )  # fmt: skip

    def _follow(self, name: str, sessions: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> set[str]:
        """The statements that a function sends through these variables, itself and through functions that it passes
        them to."""
        function = self._source.functions[name]
        if (name, sessions) in seen:
            return set()
        seen.add((name, sessions))
        found: set[str] = set()
        for node in ast.walk(function.node):
            if _is_session(node, sessions):
                found |= self._use(function, node, seen)
        return found

    def _use(self, function: Function, node: ast.AST, seen: set[tuple[str, frozenset[str]]]) -> set[str]:
        """The statements sent by one use of a session."""
        parents = function.module.parents
        parent = parents[node]
        word = parent.arg if isinstance(parent, ast.keyword) else None
        call = parents[parent] if isinstance(parent, ast.keyword) else parent
        match call:
            case ast.Attribute(attr=method) if method in SENDERS and _is_called(call, parents):
                return self._statement(function, method, parents[call])
            case ast.Attribute(attr="schema"):
                return set()
            case ast.Call(args=args) if isinstance(node, ast.expr) and (word is not None or node in args):
                target, parameter = self._handed(function, call, node, word)
                if target is not None:
                    return self._follow(target, frozenset({parameter}), seen)
            case ast.Compare() | ast.AsyncFunctionDef() | ast.FunctionDef():
                return set()
            case ast.Yield() if function.is_manager:
                return set()
        self._problem(function, node, f"`{ast.unparse(call)}` does with a session what the listing can not follow; "
                      f"call {', '.join(SENDERS)} of it, or give it to a function of ours by its name")
        return set()

    def _handed(
        self, function: Function, call: ast.Call, node: ast.expr, word: str | None
    ) -> tuple[str | None, str]:
        """The function that a session is passed to, and its parameter."""
        called, args = call.func, call.args
        if getattr(called, "id", "") == "partial":
            called, args = args[0], args[1:]
        full = function.full_name(called)
        target = self._source.functions.get(full or "")
        if target is None or (word is None and any(isinstance(arg, ast.Starred) for arg in args)):
            return None, ""
        place = -1 if word is not None else args.index(node)
        if word is None and not 0 <= place < len(target.parameters):
            return None, ""
        return target.name, word or target.parameters[place]

    def _statement(self, function: Function, method: str, call: ast.AST) -> set[str]:
        """The name, or the names, of the statements that a call of a session sends."""
        assert isinstance(call, ast.Call)
        if SENDERS[method]:
            return {SENDERS[method]}
        sent = next(iter(call.args), ast.Constant(None))
        written = ast.unparse(sent)
        if written in self._known.scripts:
            return set(self._known.scripts[written])
        named = next((word.value for word in call.keywords if word.arg == "name"), sent)
        name = self._name(function, method, named)
        if name is not None:
            return {name}
        self._problem(function, call, f"the listing can not tell what `{written}` is; write the statement's name there")
        return set()

    def _name(self, function: Function, method: str, named: ast.expr) -> str | None:
        """The name of a statement in the gaps around it; None if the source does not tell."""
        text = self._source.text(named, function.module)
        if method == "copy":
            return None if text is None or HOLE in text else f"copy {text}"
        if text is None or _is_name(text):
            return text
        return self._source.label(named, function.module) if method == "run" else None

    def _look_at(self, function: Function) -> None:
        """Find code that opens a transaction, or sends a statement, where the listing does not see it."""
        entered = {id(item.context_expr): item for item in _entered(function.node)}
        nested = {
            id(inner) for node in ast.walk(function.node)
            if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef | ast.Lambda) and node is not function.node
            for inner in ast.walk(node)
        }  # fmt: skip
        for node in ast.walk(function.node):
            if isinstance(node, ast.Attribute | ast.Name | ast.Constant):
                self._look_at_opener(function, node, entered, nested)
            if isinstance(node, ast.Call):
                self._look_at_call(function, node)

    def _look_at_opener(
        self, function: Function, node: ast.Attribute | ast.Name | ast.Constant, entered: Mapping[int, ast.withitem],
        nested: set[int],
    ) -> None:  # fmt: skip
        if function.name in self._known.on_the_driver or not self._names_opener(function, node):
            return
        item = entered.get(id(function.module.parents[node]))
        opener = _opener(node)
        is_ours = opener is None or (
            opener == "transaction" and isinstance(node, ast.Attribute)
            and ast.unparse(node.value).endswith(("db", "database"))
        )
        if item is None or isinstance(node, ast.Constant):
            self._problem(function, node, "a transaction is opened, or may be, by something else than `async with`")
        elif not is_ours:
            self._problem(function, node, "a transaction is opened past the Database")
        elif item.optional_vars is not None and not isinstance(item.optional_vars, ast.Name):
            self._problem(function, node, "bind the session of the transaction to a plain name")
        elif id(node) in nested:
            self._problem(function, node, "open a transaction in a function of a module or a class, not inside of one")

    def _names_opener(self, function: Function, node: ast.Attribute | ast.Name | ast.Constant) -> bool:
        """Whether this name opens a transaction."""
        match node:
            case ast.Attribute(attr="begin"):
                return _is_begin(function.module.parents[node])
            case ast.Attribute(attr=name):
                return name in OPENERS or any(one.endswith(f".{name}") for one in self._managers)
            case ast.Name(id=name):
                is_imported = name in OPENERS and name in function.module.imports
                return is_imported or function.full_name(node) in self._managers
            case ast.Constant(value=str(name)):
                around = function.module.parents[node]
                return name in OPENERS and isinstance(around, ast.Call) and getattr(around.func, "id", "") == "getattr"
        return False

    def _look_at_call(self, function: Function, call: ast.Call) -> None:
        method = getattr(call.func, "attr", "")
        is_maker = getattr(call.func, "id", "") == "Session"
        if is_maker and function.name not in self._known.makers:
            self._problem(function, call, "a session is made where the listing does not follow it")
        if function.name in self._known.on_bare_connections or not isinstance(call.func, ast.Attribute):
            return
        if method in RAW:
            self._problem(function, call, f"`{method}` sends a statement past the sessions of ours")
        elif method == "fetch" and not (call.args and _is_name(self._source.text(call.args[0], function.module))):
            self._problem(function, call, "`fetch` is not given the name of a statement")

    def _look_at_text(self, module: Module) -> None:
        """Find transactions that are begun, or ended, by text."""
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CONTROL.search(node.value):
                name = _place(node, module)
                if _is_sent(node, module) and name not in self._known.speakers:
                    self._problems.add(
                        f"{name}, line {node.lineno}: {node.value!r} begins or ends a transaction by text"
                    )

    def _look_outside_functions(self, module: Module) -> None:
        """Find code that opens transactions, or is another name for it, outside of the functions that are listed."""
        listed = {id(function.node) for function in self._source.functions.values()}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and node.attr in OPENERS and not _is_within(node, listed, module):
                what = f"`{ast.unparse(node)}` is used outside of functions"
                self._problems.add(f"{module.name}, line {node.lineno}: {what}")

    def _look_at_known(self) -> None:
        known = self._known
        for table in (known.on_the_driver, known.on_bare_connections, known.makers, known.speakers):
            self._problems |= {f"{name}: a table of the listing names it, and there is no such function"
                               for name in table if name not in self._source.functions}
        written = {ast.unparse(node) for module in self._source.modules for node in ast.walk(module.tree)
                   if isinstance(node, ast.expr)} if known.scripts else set()
        self._problems |= {f"`{one}`: a table of the listing names it, and nothing is written so"
                           for one in known.scripts if one not in written}

    def _problem(self, function: Function, node: ast.AST, what: str) -> None:
        self._problems.add(f"{function.where(node)}: {what}")


def _entered(function: ast.AST) -> Iterator[ast.withitem]:
    for node in ast.walk(function):
        if isinstance(node, ast.AsyncWith | ast.With):
            yield from node.items


def _is_session(node: ast.AST, sessions: frozenset[str]) -> bool:
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return name in sessions
        case ast.Attribute(attr="session", ctx=ast.Load()):
            return True
    return False


def _is_begin(node: ast.AST) -> bool:
    """Whether that is `….begin()`: a call with arguments begins something else."""
    return (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "begin"
            and not node.args and not node.keywords)


def _opener(node: ast.AST) -> str | None:
    """The name of what opens a transaction, as `begin` does; None for the engine's functions."""
    match node:
        case ast.Attribute(attr=name) if name in {*OPENERS, "begin"}:
            return name
        case ast.Name(id=name) if name in OPENERS:
            return name
    return None


def _is_within(node: ast.AST, functions: set[int], module: Module) -> bool:
    """Whether one of these functions is around a node."""
    around: ast.AST | None = node
    while around is not None and id(around) not in functions:
        around = module.parents.get(around)
    return around is not None


def _is_called(method: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> bool:
    call = parents[method]
    return isinstance(call, ast.Call) and call.func is method


def _is_name(text: str | None) -> bool:
    """Whether that is the name of a statement: its file in `sql`, without the ending."""
    return text is not None and re.fullmatch(r"\w+/\w+", text) is not None


def _is_sent(text: ast.AST, module: Module) -> bool:
    """Whether a string may be sent: it is no docstring, and no gap's name."""
    around = module.parents[text]
    return not isinstance(around, ast.Expr) and getattr(getattr(around, "func", None), "attr", "") != "reach"


def _place(node: ast.AST, module: Module) -> str:
    """The full name of the function around a node."""
    names: list[str] = []
    above: ast.AST | None = node
    while above is not None:
        if isinstance(above, ast.AsyncFunctionDef | ast.FunctionDef | ast.ClassDef):
            names.append(above.name)
        above = module.parents.get(above)
    return ".".join([module.name, *reversed(names)])
