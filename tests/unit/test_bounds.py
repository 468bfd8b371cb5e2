"""H2, M6: bounds are seen in a text before anything is made of it, and how much was made is counted, not timed."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell._core.serialization import codec
from stepwell._core.serialization.bounds import (
    check_bounds,
    check_raw,
    count_values,
    depth_of,
    most_values,
    read_raw,
    without_strings,
)
from stepwell._core.serialization.codec import encode_raw, encode_value
from stepwell._core.serialization.reply_type import reply_type
from stepwell._core.serialization.state_type import StateType
from stepwell.errors import InvalidPayload, InvalidState, PayloadTooLarge

LARGEST = 16_384
MOST = most_values(LARGEST)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**40), 10**40) | st.text(max_size=6)
    | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["\\", '"', '",[{', "e308", "\\\\\""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4), max_leaves=25,
)  # fmt: skip


def number_of_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(number_of_values, value.values()))
    return 1 + sum(map(number_of_values, value)) if isinstance(value, list) else 1


def depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(JSON, st.sampled_from([None, 2]))
def test_the_number_of_values_and_the_depth_are_read_from_the_text(value: Any, indent: int | None) -> None:
    bare = without_strings(json.dumps(value, ensure_ascii=False, indent=indent).encode("utf-8", "replace"))

    assert (count_values(bare), depth_of(bare)) == (number_of_values(value), depth(value))


def test_a_size_is_counted_in_bytes() -> None:
    check_bounds('"' + "é" * 511 + '"', "payload", 1_024)

    with pytest.raises(PayloadTooLarge) as refused:
        check_bounds('"' + "é" * 512 + '"', "payload", 1_024)

    error = refused.value
    assert (error.size, error.limit, error.field, error.unit) == (1_026, 1_024, "payload", "bytes")


@pytest.mark.parametrize(
    ("text", "size"),
    [("[" + "1e308," * 60 + "1e308]", 61 * 309 + 60 * 2 + 2), ("[" + ",".join(["5e-324"] * 51) + "]", 51 * 328),
     ("[" + ",".join(["-1.5e-7"] * 1_640) + "]", 1_640 * 13), ('{"a":[' + '"b",' * 3_300 + "0]}", 3_300 * 5 + 9)],
)  # fmt: skip
def test_a_size_is_counted_as_postgres_writes_it(text: str, size: int) -> None:
    """M6: `1e308` is five bytes on its way in, and 309 for its reader."""
    check_bounds(text, "reply", 8 * size)
    if count_values(text.encode()) <= most_values(size):
        check_bounds(text, "reply", size)
    with pytest.raises(PayloadTooLarge):
        check_bounds(text, "reply", size - 1)


MANY: dict[str, str] = {
    "numbers": "[" + ",".join(["1"] * MOST) + "]",
    "empty lists": "[" + ",".join(["[]"] * MOST) + "]",
    "empty objects": "[" + ",".join(["{}"] * MOST) + "]",
    "members": "{" + ",".join(f'"{n}":0' for n in range(MOST)) + "}",
    "lists in lists": "[" + ",".join(["[[[[[[[]]]]]]]"] * (MOST // 7 + 1)) + "]",
    "texts": "[" + ",".join(['""'] * MOST) + "]",
}
ENOUGH: dict[str, Any] = {
    "numbers": [1] * (MOST - 1), "empty lists": [[]] * (MOST - 1), "members": {str(n): 0 for n in range(1_200)},
    "commas in a text": ",[{" * 5_000, "quotes in a text": ['",' * 2_000, "\\" * 1_000 + '"'],
}  # fmt: skip


@pytest.mark.parametrize("case", MANY)
def test_too_many_values_are_refused_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    made = [0]
    monkeypatch.setattr("stepwell._core.serialization.bounds._decoder", lambda _: made.append(1))

    with pytest.raises(PayloadTooLarge, match=r"values are more than 2,048 \(max_payload / 8\); s") as refused:
        encode_raw(MANY[case].encode(), "reply", LARGEST)

    assert (refused.value.unit, refused.value.limit, made) == ("values", MOST, [0])


@pytest.mark.parametrize("case", MANY)
def test_too_many_values_are_refused_before_a_value_is_traversed(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    walked: list[object] = []
    monkeypatch.setattr(codec, "check_json", lambda root, *_, **__: walked.append(root))

    with pytest.raises(PayloadTooLarge):
        encode_value(json.loads(MANY[case]), "payload", LARGEST)
    with pytest.raises(PayloadTooLarge):
        StateType(dict[str, list[Any] | dict[str, int]]).admit({"a": json.loads(MANY[case])}, LARGEST)

    assert walked == []


@pytest.mark.parametrize("case", ENOUGH)
def test_values_within_the_bounds_are_accepted_from_python_and_json(case: str) -> None:
    value = ENOUGH[case]

    texts = {encode_value(value, "payload", LARGEST), encode_raw(json.dumps(value).encode(), "payload", LARGEST),
             encode_raw(json.dumps(value, indent=1, ensure_ascii=False).encode(), "payload", LARGEST)}  # fmt: skip

    assert [json.loads(text) for text in texts] == [value]


@given(JSON)
def test_foreign_json_is_the_text_of_its_value(value: Any) -> None:
    raw = json.dumps(value, indent=2)
    try:
        text = encode_value(value, "reply")
    except InvalidPayload as refused:
        with pytest.raises(InvalidPayload, match=r"NUL|surrogate"):
            encode_raw(raw.encode(), "reply", 1_000_000)
        assert "NUL" in refused.problem or "surrogate" in refused.problem  # noqa: PT017
    else:
        assert encode_raw(raw.encode(), "reply", 1_000_000) == text


LARGE = [{"a": [n]} for n in range(2_000)]


@pytest.mark.parametrize("number", [1e308, 5e-324, 1.5, 10**300, True, None, -0.0])
def test_a_large_plain_json_value_is_not_traversed(monkeypatch: pytest.MonkeyPatch, number: Any) -> None:
    walked: list[object] = []
    monkeypatch.setattr(codec, "check_json", lambda root, *_, **__: walked.append(root))

    text = encode_value([*LARGE, number], "payload")

    assert json.loads(text) == [*LARGE, number]
    assert walked == []


@pytest.mark.parametrize(
    ("bad", "problem"),
    [(float("nan"), "finite number"), ("\0", "NUL"), ("\ud800", "surrogate"), (10**1000, "digits"),
     ({1: 2}, "is not a string"), ({1, 2}, "JSON has no set")],
)  # fmt: skip
@pytest.mark.parametrize("number", [1_000, 15_000])
def test_a_bad_part_of_a_large_value_is_found(bad: object, problem: str, number: int) -> None:
    """The place is named where it is soon found."""
    value = [*([[n]] for n in range(number)), bad]

    with pytest.raises(InvalidPayload, match=problem) as refused:
        encode_value(value, "payload")

    assert str(refused.value).startswith("payload")
    if number == 1_000:
        assert str(refused.value).startswith("payload[1000]")


@pytest.mark.parametrize(
    ("raw", "problem"),
    [(b"[1e309]", "1e309 is out of range"), (b"[-1e131071]", "out of range"), (b"1" * 1_001, "more than 1,000 digits"),
     (b"0." + b"0" * 1_001, "more than 1,000 digits"), (b'{"a": 1, "a": 2}', "'a' twice"), (b"NaN", "not JSON"),
     (b"[1", "not JSON"), (b"\xff", "not JSON"), (b'"\\u0000"', "NUL"), (b'"\\ud800"', "surrogate"),
     (b"[" * 501 + b"]" * 501, "500 levels"), (b"[" * 100_000 + b"]" * 100_000, "not JSON|values are more")],
)  # fmt: skip
def test_foreign_json_that_cannot_be_stored_is_refused(raw: bytes, problem: str) -> None:
    with pytest.raises((InvalidPayload, PayloadTooLarge), match=problem) as refused:
        encode_raw(raw, "reply", 1_000_000)

    assert refused.value.field.startswith("reply")


def test_foreign_json_that_is_mostly_spaces_is_not_read() -> None:
    with pytest.raises(PayloadTooLarge):
        check_raw(b"[" + b" " * 6 * LARGEST + b"]", "reply", LARGEST)


@pytest.mark.parametrize("last", ["\\u0000", "\0", "7" * 1_200])
def test_a_text_that_only_looks_bad_is_not_traversed(monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    """A text with a backslash and `u0000` behind it has no NUL, and digits in a text are no number."""
    walked: list[object] = []
    monkeypatch.setattr(codec, "check_json", lambda root, *_, **__: walked.append(root))
    monkeypatch.setattr(codec, "_MOST_SCANNED", 10)

    if last == "\0":
        with pytest.raises(InvalidPayload, match="NUL"):
            encode_value([*LARGE, last], "payload")
        assert len(walked) == 1  # ten containers of it, for the words
    else:
        assert json.loads(encode_value([*LARGE, last], "payload"))[-1] == last
        assert walked == []


def test_an_allowed_value_reaches_no_recursion_limit() -> None:
    raw = b"[" * 500 + b"]" * 500

    assert encode_raw(raw, "reply", 1_000_000) == raw.decode()
    assert sys.getrecursionlimit() >= 1_000
    assert msgspec.json.decode(raw)


NESTED = ("[" + ",".join(['{"":' * 450 + "0" + "}" * 450] * 280) + "]").encode()


PRIME = 2**61 - 1  # a whole number has the hash of its remainder


@pytest.mark.parametrize("kind", [set[int], frozenset[int], dict[str, set[int]], dict[int, int]])
def test_many_numbers_of_one_hash_are_refused_if_they_would_be_hashed(kind: Any) -> None:
    """43,000 of them, in 1 MB, took seconds: each takes as long as all before it."""
    few, many = ([PRIME * (100 + n) for n in range(number)] for number in (1_000, 1_001))

    def written(numbers: list[int]) -> str:
        found: Any = {str(n): 1 for n in numbers} if kind == dict[int, int] else numbers
        return encode_value({"all": found} if kind == dict[str, set[int]] else found, "reply")

    assert reply_type(kind).admit(written(few))
    assert reply_type(kind).admit(written([*range(100_000)]))
    assert reply_type(kind).decode(written(many))
    with pytest.raises(InvalidState, match="more than 1,000 whole numbers of over 20 digits"):
        reply_type(kind).admit(written(many))


def test_long_numbers_are_accepted_if_they_are_not_hashed() -> None:
    assert reply_type(list[int]).admit(encode_value([PRIME * 100] * 2_000, "reply"))
    assert reply_type(dict[str, list[str]]).admit(encode_value({"all": [f"{PRIME}00"] * 2_000}, "reply"))


def read_outer(raw: bytes) -> Any:
    return read_raw(raw, "reply", 1024 * 1024)


READERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "a reply": (read_outer, NESTED), "what is no reply": (read_outer, NESTED[:-1]),
    "a reply of no type": (reply_type(Any).decode, NESTED.decode()),
    "a reply of a type": (reply_type(list[Any]).admit, NESTED.decode()),
    "what a projector has made": (lambda value: encode_value(value, "reply"), msgspec.json.decode(NESTED)),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_the_garbage_collector_does_not_run_during_decoding(reader: str) -> None:
    """The search took as long as all the rest, for objects nested deep."""
    phases: list[str] = []
    read, given = READERS[reader]

    def note(phase: str, _: dict[str, int]) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    try:
        with suppress(InvalidPayload):
            read(given)
        during, is_on = len(phases), gc.isenabled()
    finally:
        gc.callbacks.remove(note)

    assert is_on
    assert during <= 2  # one, which is due as soon as the collector is on again


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        read_raw(b"[1]", "reply", 1024)
        is_on = gc.isenabled()
    finally:
        gc.enable()

    assert not is_on
