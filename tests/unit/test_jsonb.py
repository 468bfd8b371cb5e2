"""The text of a state as Postgres gives it back: tests/store/test_jsonb.py compares with Postgres itself."""

from __future__ import annotations

import pytest

from stepwell._core.jsonb import as_jsonb


@pytest.mark.parametrize("text", ['{"number":1,"name":"1.5"}', '{"list":[1,2.5,-0.5,null,true]}', "{}"])
def test_a_plain_record_is_left_as_it_is(text: str) -> None:
    assert as_jsonb(text, is_mapping=False) is text


def test_keys_are_kept_by_length_and_then_by_bytes() -> None:
    assert as_jsonb('{"bb":1,"é":2,"b":3,"a":4,"aaa":5}', is_mapping=True) == '{"a":4,"b":3,"bb":1,"é":2,"aaa":5}'


def test_whole_numbers_with_an_exponent_are_whole_numbers() -> None:
    assert as_jsonb('{"a":1e17,"b":-1e22,"c":1.5,"d":1e-7,"e":-0.0}', is_mapping=False) == (
        '{"a":100000000000000000,"b":-10000000000000000000000,"c":1.5,"d":1e-7,"e":0.0}'
    )
