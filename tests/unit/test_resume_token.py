"""Tokens: the holder of one may complete one interaction; without a key none can be made, and keys can be changed."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256
from hmac import digest
from typing import Any

import pytest

from stepwell._core.resume_token import TokenFacts, TokenKeys
from stepwell.errors import InvalidToken, SettingError

OLD = "an older secret of more than 32 bytes"
NEW = "a newer secret, also of more than 32 bytes"
FACTS = TokenFacts("acme", "0199-q", "c-1", 42, "approve", 1_795_000_000_000)


def changed(token: str, part: int, text: str) -> str:
    parts = token.split(".")
    parts[part] = text
    return ".".join(parts)


def payload_of(json: bytes) -> str:
    return urlsafe_b64encode(json).rstrip(b"=").decode()


@pytest.mark.parametrize(
    "facts",
    [FACTS, TokenFacts("", "q", "c", 1, "s", None), TokenFacts("größe " * 30, "q", "ü" * 200, 2**63 - 1, "x" * 200, 0)],
)
def test_a_token_says_what_was_signed(facts: TokenFacts) -> None:
    keys = TokenKeys.read({"k1": NEW})

    token = keys.sign(facts)

    assert keys.verify(token) == facts
    assert token.startswith("sw1.k1.")
    assert token.count(".") == 3
    assert NEW not in token


def test_the_first_key_signs_and_all_verify() -> None:
    before = TokenKeys.read({"2026-10": OLD})
    rotated = TokenKeys.read({"2026-11": NEW, "2026-10": OLD})

    old, new = before.sign(FACTS), rotated.sign(FACTS)

    assert new.startswith("sw1.2026-11.")
    assert rotated.verify(old) == rotated.verify(new) == FACTS


def test_a_removed_key_invalidates_its_tokens() -> None:
    token = TokenKeys.read({"2026-10": OLD}).sign(FACTS)

    with pytest.raises(InvalidToken, match="'2026-10', which is not in use") as refused:
        TokenKeys.read({"2026-11": NEW}).verify(token)

    assert refused.value.reason == "token"


@pytest.mark.parametrize("ring", [{"2026-11": NEW}, {"2026-11": OLD}])
def test_a_changed_payload_is_refused(ring: dict[str, str]) -> None:
    keys = TokenKeys.read(ring)
    token = keys.sign(FACTS)
    other = keys.sign(TokenFacts("acme", "0199-other", "c-1", 42, "approve", None))

    with pytest.raises(InvalidToken, match="signature"):
        keys.verify(changed(token, 2, other.split(".")[2]))


def test_every_single_character_of_a_token_counts() -> None:
    keys = TokenKeys.read({"2026-11": NEW})
    token = keys.sign(FACTS)

    for place, character in enumerate(token):
        with pytest.raises(InvalidToken):
            keys.verify(token[:place] + ("A" if character != "A" else "B") + token[place + 1 :])


def test_another_text_for_the_same_signature_is_refused() -> None:
    keys = TokenKeys.read({"k": NEW})
    token = keys.sign(FACTS)
    signature = token.rsplit(".", 1)[1]
    raw = urlsafe_b64decode(signature + "=")
    twins = [signature[:-1] + last for last in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"]
    twins = [twin for twin in twins if twin != signature and urlsafe_b64decode(twin + "=") == raw]

    assert twins, "base64 of 32 bytes leaves two bits over"
    for twin in twins:
        with pytest.raises(InvalidToken, match="signature"):
            keys.verify(changed(token, 3, twin))


def test_a_key_id_is_part_of_the_signed_text() -> None:
    keys = TokenKeys.read({"a": NEW, "b": NEW})

    with pytest.raises(InvalidToken, match="signature"):
        keys.verify(changed(keys.sign(FACTS), 1, "b"))


def test_a_signature_by_another_secret_is_refused() -> None:
    forged = TokenKeys.read({"k": OLD}).sign(FACTS)

    with pytest.raises(InvalidToken, match="signature"):
        TokenKeys.read({"k": NEW}).verify(forged)


@pytest.mark.parametrize(
    "token",
    ["", "sw1", "sw1.k.e30", "sw1.k..", "sw1..e30.e30", "sw2.k.e30.e30", "sw1.k.e30.e30.e30", "sw1.k.e30=.e30",
     "sw1.k.e30.e30\n", " sw1.k.e30.e30", "sw1.k.é.é", "sw1.\ud800.e30.e30", "sw1.k.e30." + "A" * 5_000, "\x00"],
)  # fmt: skip
def test_a_malformed_token_is_refused_with_a_message(token: str) -> None:
    with pytest.raises(InvalidToken, match="malformed"):
        TokenKeys.read({"k": NEW}).verify(token)


@pytest.mark.parametrize("json", [b"{}", b"[]", b'["acme"]', b"nonsense", b"\xff", b'["a","b","c","d","e",null]'])
def test_another_text_signed_by_the_key_is_not_a_token(json: bytes) -> None:
    signed = f"sw1.k.{payload_of(json)}"
    signature = payload_of(digest(NEW.encode(), signed.encode(), sha256))

    with pytest.raises(InvalidToken, match="facts are not Stepwell"):
        TokenKeys.read({"k": NEW}).verify(f"{signed}.{signature}")


def test_a_payload_of_impossible_length_is_not_a_token() -> None:
    signature = payload_of(digest(NEW.encode(), b"sw1.k.A", sha256))  # no bytes have a base64 of one character

    with pytest.raises(InvalidToken, match="facts are not Stepwell"):
        TokenKeys.read({"k": NEW}).verify(f"sw1.k.A.{signature}")


@pytest.mark.parametrize("keys", [None, {}, "", " ", ","])
def test_a_ring_without_keys_signs_nothing_and_verifies_no_token(keys: Any) -> None:
    ring = TokenKeys.read(keys)

    assert ring.is_empty
    with pytest.raises(SettingError, match="no key to sign"):
        ring.sign(FACTS)
    with pytest.raises(InvalidToken, match="not in use"):
        ring.verify(TokenKeys.read({"k": NEW}).sign(FACTS))


def test_keys_are_read_from_one_text_in_its_order() -> None:
    keys = TokenKeys.read(f" new:{NEW.replace(',', ':')} , old:{OLD}\n")

    assert not keys.is_empty
    assert keys.sign(FACTS).startswith("sw1.new.")
    assert keys.verify(TokenKeys.read({"old": OLD.encode()}).sign(FACTS)) == FACTS
    assert keys.verify(TokenKeys.read({"new": NEW.replace(",", ":")}).sign(FACTS)) == FACTS


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"k": "x" * 31}, "has 31 bytes, at least 32"),
        ({"k": ""}, "is blank"),
        ({"k": " " * 40}, "is blank"),
        ({"k": b" " * 40}, "is blank"),
        ({"k": None}, "is not a string, but NoneType"),
        ({"k": 5}, "is not a string, but int"),
        ({"": NEW}, "id of key 1"),
        ({"a": NEW, "x" * 33: NEW}, "id of key 2"),
        ({"a b": NEW}, "id of key 1"),
        ({"a.b": NEW}, "id of key 1"),
        ({"k\n": NEW}, "id of key 1"),
        ({5: NEW}, "id of key 1"),
        ("k:", "is blank"),
        (f"k:{OLD},k:{OLD}", "'k' is given twice"),
        (5, "expected a mapping"),
        ([("k", NEW)], "expected a mapping"),
    ],
)
def test_invalid_keys_are_refused_by_name(keys: Any, problem: str) -> None:
    with pytest.raises(SettingError, match=problem) as refused:
        TokenKeys.read(keys)

    assert refused.value.setting == "token_keys"


def test_exactly_32_bytes_are_enough() -> None:
    assert TokenKeys.read({"x" * 32: "é" * 16}).verify(TokenKeys.read({"x" * 32: "é" * 16}).sign(FACTS)) == FACTS


def test_keys_show_their_ids_only() -> None:
    keys = TokenKeys.read({"2026-11": NEW, "2026-10": OLD})

    assert repr(keys) == str(keys) == "TokenKeys(2026-11, 2026-10)"


@pytest.mark.parametrize("keys", [NEW, "0123456789abcdef" * 2, {NEW: "id"}, {"k": "short secret"}])
def test_a_refusal_does_not_show_the_secret(keys: Any) -> None:
    with pytest.raises(SettingError) as refused:
        TokenKeys.read(keys)

    assert not [word for word in ("newer", "0123", "short") if word in str(refused.value)]
