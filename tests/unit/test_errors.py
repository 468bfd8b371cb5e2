"""The public surface, and the error tree drawn on top of errors.py."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import stepwell
from stepwell import errors
from stepwell.errors import (
    DatabaseUnreachable,
    ForeignSchema,
    InstanceCancelled,
    InstanceFailed,
    NotFound,
    PayloadTooLarge,
    SchemaOutdated,
    SchemaTooNew,
    StepwellError,
    UnknownMachine,
    UnknownStep,
    VersionInUse,
)

LINE = re.compile(r"^ {4}((?:[│ ] {3})*(?:[├└]── )?)(\w+)(?: \((\w+)\))?")


def drawn_tree() -> dict[str, tuple[str | None, str | None]]:
    """Each error in the docstring, with its parent and the builtin it also is."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    path: list[str] = []
    docstring = Path(errors.__file__).read_text().split('"""')[1]  # Python 3.13 strips the indentation of `__doc__`
    for line in docstring.splitlines():
        if found := LINE.match(line):
            depth = len(found[1]) // 4
            path[depth:] = [found[2]]
            tree[found[2]] = (path[depth - 1] if depth else None, found[3])
    return tree


def real_tree() -> dict[str, tuple[str | None, str | None]]:
    tree = {}
    for name, cls in vars(errors).items():
        if inspect.isclass(cls) and issubclass(cls, StepwellError):
            own = [base.__name__ for base in cls.__bases__ if issubclass(base, StepwellError)]
            builtin = [base.__name__ for base in cls.__bases__ if not issubclass(base, StepwellError)]
            tree[name] = (own[0] if own else None, builtin[0] if own and builtin else None)
    return tree


def test_the_drawn_error_tree_is_the_real_one() -> None:
    real = real_tree()
    drawn = {name: (parent, also or real.get(name, (None, None))[1]) for name, (parent, also) in drawn_tree().items()}

    assert drawn == real


def test_every_builtin_drawn_beside_an_error_is_one_of_its_bases() -> None:
    for name, (_, builtin) in drawn_tree().items():
        if builtin is not None:
            assert real_tree()[name][1] == builtin


def test_the_public_names_are_sorted_unique_and_importable() -> None:
    names = stepwell.__all__

    assert names == sorted(set(names))
    assert all(getattr(stepwell, name) is not None for name in names)


def test_every_error_is_public() -> None:
    assert set(real_tree()) <= set(stepwell.__all__)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (UnknownMachine("Ordr", ["Order"]),
         "machine: 'Ordr' is not registered; pass it to Engine(machines=[…]); did you mean 'Order'?"),
        (UnknownStep("Order", "shp", ["start", "ship"]),
         "step: machine 'Order' has no step 'shp'; did you mean 'ship'?"),
        (UnknownStep("Order", "zzz", ["start", "ship"]),
         "step: machine 'Order' has no step 'zzz' (it has: start, ship)"),
        (PayloadTooLarge("state", 2_000_000, 1_048_576),
         ("state: 2,000,000 bytes are more than max_payload (1,048,576); "
          "store a reference instead, or raise max_payload")),
        (SchemaOutdated(0, 1), "the schema 'stepwell' is missing, version 1 is needed; run: stepwell migrate"),
        (SchemaOutdated(1, 2), "the schema 'stepwell' is at version 1, version 2 is needed; run: stepwell migrate"),
        (SchemaOutdated(0, 1, "shop"),
         "the schema 'shop' is missing, version 1 is needed; run: stepwell migrate --schema shop"),
        (SchemaTooNew(9, 1),
         "the schema 'stepwell' is at version 9, this Stepwell knows up to 1; upgrade the package on this host"),
        (VersionInUse("bill", 1, 5),
         ("'bill' version 1: its steps or await steps differ from those of its living runs, such as 5; raise "
          "version=, and register the old one too until its last run has ended")),
        (ForeignSchema("the schema stepwell", "mallory"),
         ("the schema stepwell belongs to 'mallory', and this role is not a member of that role; code in the schema "
          "would run with the rights of this role. If it is yours, migrate as 'mallory'; else drop the schema")),
        (NotFound(5), "no instance with id 5"),
        (NotFound("order:5"), "no instance with key 'order:5'"),
        (InstanceFailed(5, "Order", "ship", "ValueError", "no luck"),
         "Order #5 failed at step 'ship': ValueError: no luck"),
        (InstanceCancelled(5, "Order", None), "Order #5 was cancelled"),
        (DatabaseUnreachable("postgresql://host/db", "refused"),
         "no Postgres answers at postgresql://host/db: refused"),
    ],
)  # fmt: skip
def test_an_error_says_what_which_one_and_what_to_do(error: StepwellError, message: str) -> None:
    assert str(error) == message


def test_errors_keep_their_facts() -> None:
    error = UnknownStep("Order", "shp", ["ship"])

    assert (error.field, error.machine, error.step, error.known) == ("step", "Order", "shp", ("ship",))
