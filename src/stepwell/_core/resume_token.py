"""Signed resume tokens: a token permits its holder to complete one interaction. Keys have ids, for rotation."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest, digest

import msgspec

from stepwell.errors import InvalidToken, SettingError

LEAST_SECRET = 32  # bytes, the length of the digest
LONGEST_TOKEN = 4096  # characters; names of 200 characters make about 1,500
_SCHEME = "sw1"
_SETTING = "token_keys"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TOKEN = re.compile(rf"({_SCHEME}\.([A-Za-z0-9_-]{{1,32}})\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]+)")


class TokenFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts in a token. The database decides whether they match the interaction, and whether that is open."""

    tenant: str
    interaction: str
    correlation: str
    instance: int
    step: str
    deadline: int | None  # milliseconds since 1970

    def is_of(self, interaction: str | None, correlation: str | None) -> bool:
        """Whether it names the interaction with these names, as far as they are given."""
        return interaction in (None, self.interaction) and correlation in (None, self.correlation)


class TokenKeys:
    """A ring of keys by id: the first one signs, all of them verify."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._secrets = dict(secrets)

    @classmethod
    def read(cls, keys: object) -> TokenKeys:
        """The keys in `{"2026-11": "secret…"}`, or in "2026-11:secret…,2026-10:older…" as in the environment."""
        if keys is None:
            return cls({})
        if isinstance(keys, str):
            return cls(_check_all(_split(keys)))
        if isinstance(keys, Mapping):
            return cls(_check_all(keys.items()))
        raise SettingError(_SETTING, f"expected a mapping of key id to secret, got {type(keys).__name__}")

    @property
    def is_empty(self) -> bool:
        """There is no key: nothing can be signed, every token is invalid."""
        return not self._secrets

    def sign(self, facts: TokenFacts) -> str:
        """A token for these facts, under the first key."""
        if self.is_empty:
            raise SettingError(_SETTING, "there is no key to sign a token; "
                               f"give the engine one of at least {LEAST_SECRET} bytes")
        key_id = next(iter(self._secrets))
        signed = f"{_SCHEME}.{key_id}.{_b64(msgspec.json.encode(facts))}"
        return f"{signed}.{self._signature(key_id, signed)}"

    def verify(self, token: str) -> TokenFacts:
        """The facts of a token, if one of these keys has signed it and it is unchanged; else InvalidToken."""
        parts = _TOKEN.fullmatch(token) if len(token) <= LONGEST_TOKEN else None
        if parts is None:
            raise InvalidToken(None, "the token is malformed; pass it as it was issued")
        signed, key_id, payload, signature = parts.groups()
        if key_id not in self._secrets:
            raise InvalidToken(None, f"the token was signed with key {key_id!r}, which is not in use here")
        # Texts are compared, not what they decode to: base64 has several texts for the same bytes.
        if not compare_digest(signature, self._signature(key_id, signed)):
            raise InvalidToken(None, "the token's signature does not match; it was changed, or has another secret")
        return _facts(payload)

    def _signature(self, key_id: str, signed: str) -> str:
        return _b64(digest(self._secrets[key_id], signed.encode(), sha256))

    def __repr__(self) -> str:
        return f"TokenKeys({', '.join(self._secrets)})"  # never the secrets


def key_of(token: str) -> str:
    """The id of the key that signed a token; only for verified tokens."""
    return token.split(".")[1]


def token_hash(token: str) -> str:
    """The hash of a token, by which SQL checks it without a key."""
    return sha256(token.encode()).hexdigest()


def _facts(payload: str) -> TokenFacts:
    try:
        return msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=TokenFacts)
    except ValueError:  # of base64 and of msgspec: other software signs with the same key
        raise InvalidToken(None, "the token's facts are not Stepwell's; use a key only for its tokens") from None


def _b64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _split(text: str) -> list[tuple[str, str]]:
    entries = [entry.strip().partition(":") for entry in text.split(",") if entry.strip()]
    return [(key_id.strip() if colon else "", secret.strip()) for key_id, colon, secret in entries]


def _check_all(pairs: Iterable[tuple[object, object]]) -> dict[str, bytes]:
    secrets: dict[str, bytes] = {}
    for number, (key_id, secret) in enumerate(pairs, 1):
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            # Named by its position only: if an id was forgotten, its text may be the secret.
            raise SettingError(_SETTING, f"the id of key {number} is not of 1 to 32 letters, digits, '_' or '-'; "
                               "in the environment keys are id:secret,id:secret")
        if key_id in secrets:
            raise SettingError(_SETTING, f"key {key_id!r} is given twice")
        secrets[key_id] = _check_secret(key_id, secret)
    return secrets


def _check_secret(key_id: str, secret: object) -> bytes:
    if not isinstance(secret, str | bytes):
        raise SettingError(_SETTING, f"the secret of key {key_id!r} is not a string, but {type(secret).__name__}")
    if not secret.strip():
        raise SettingError(_SETTING, f"the secret of key {key_id!r} is blank; make one with: openssl rand -base64 48")
    content = secret if isinstance(secret, bytes) else secret.encode("utf-8", "surrogatepass")
    if len(content) < LEAST_SECRET:
        raise SettingError(_SETTING, f"the secret of key {key_id!r} has {len(content)} bytes, at least {LEAST_SECRET} "
                           "are needed; make one with: openssl rand -base64 48")
    return content
