"""Signed resume tokens: whoever holds one may answer the one question it names. Keys have ids, so that they rotate."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest, digest

import msgspec

from stepwell.errors import InvalidToken, SettingError

LEAST_SECRET = 32  # bytes: as many as the digest has
LONGEST_TOKEN = 4096  # characters; names of 200 characters make about 1,500
_SCHEME = "sw1"
_SETTING = "token_keys"
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_TOKEN = re.compile(rf"({_SCHEME}\.([A-Za-z0-9_-]{{1,32}})\.([A-Za-z0-9_-]+))\.([A-Za-z0-9_-]+)")


class TokenFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a token says. Whether it fits the question, and whether that is still open, is decided where rows are."""

    tenant: str
    interaction: str
    correlation: str
    instance: int
    step: str
    deadline: int | None  # milliseconds since 1970


class TokenKeys:
    """A ring of keys by id: the first one signs, all of them verify."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Mapping[str, bytes]) -> None:
        self._secrets = dict(secrets)

    @classmethod
    def read(cls, keys: object) -> TokenKeys:
        """The keys of `{"2026-11": "secret…"}`, or of "2026-11:secret…,2026-10:older…" as in the environment."""
        if keys is None:
            return cls({})
        if isinstance(keys, str):
            return cls(_check_all(_split(keys)))
        if isinstance(keys, Mapping):
            return cls(_check_all(keys.items()))
        raise SettingError(_SETTING, f"expected a mapping of key id to secret, got {type(keys).__name__}")

    @property
    def is_empty(self) -> bool:
        """There is no key: nothing can be signed, no token holds."""
        return not self._secrets

    def sign(self, facts: TokenFacts) -> str:
        """A token for these facts, under the first key."""
        if self.is_empty:
            raise SettingError(_SETTING, "there is no key to sign a token with; "
                               f"give the engine one of at least {LEAST_SECRET} bytes")
        key_id = next(iter(self._secrets))
        signed = f"{_SCHEME}.{key_id}.{_b64(msgspec.json.encode(facts))}"
        return f"{signed}.{self._signature(key_id, signed)}"

    def verify(self, token: str) -> TokenFacts:
        """The facts of a token that one of these keys has signed, and that nobody has changed since."""
        parts = _TOKEN.fullmatch(token) if len(token) <= LONGEST_TOKEN else None
        if parts is None:
            raise InvalidToken(None, "the token is malformed; hand it on as it was issued")
        signed, key_id, payload, signature = parts.groups()
        if key_id not in self._secrets:
            raise InvalidToken(None, f"the token was signed with key {key_id!r}, which is not in use here")
        # Texts are compared, not what they decode to: base64 has several texts for the same bytes.
        if not compare_digest(signature, self._signature(key_id, signed)):
            raise InvalidToken(None, "the token's signature does not fit; it was changed or signed by somebody else")
        return _facts(payload)

    def _signature(self, key_id: str, signed: str) -> str:
        return _b64(digest(self._secrets[key_id], signed.encode(), sha256))

    def __repr__(self) -> str:
        return f"TokenKeys({', '.join(self._secrets)})"  # never the secrets


def key_of(token: str) -> str:
    """The id of the key that a token was signed with; of one that was verified."""
    return token.split(".")[1]


def seal_of(token: str) -> str:
    """The hash of a token by which SQL knows it, without a key."""
    return sha256(token.encode()).hexdigest()


def _facts(payload: str) -> TokenFacts:
    try:
        return msgspec.json.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), type=TokenFacts)
    except ValueError:  # of base64 and of msgspec: somebody else signs other things with the same key
        raise InvalidToken(None, "the token does not say what ours say; use a key for nothing but tokens") from None


def _b64(content: bytes) -> str:
    return urlsafe_b64encode(content).rstrip(b"=").decode()


def _split(text: str) -> list[tuple[str, str]]:
    entries = [entry.strip().partition(":") for entry in text.split(",") if entry.strip()]
    return [(key_id.strip() if colon else "", secret.strip()) for key_id, colon, secret in entries]


def _check_all(pairs: Iterable[tuple[object, object]]) -> dict[str, bytes]:
    secrets: dict[str, bytes] = {}
    for number, (key_id, secret) in enumerate(pairs, 1):
        if not isinstance(key_id, str) or not _KEY_ID.fullmatch(key_id):
            # By its place only: where an id was forgotten, the secret may stand for it.
            raise SettingError(_SETTING, f"the id of key {number} is not of 1 to 32 letters, digits, '_' or '-'; "
                               "in the environment keys are id:secret,id:secret")
        if key_id in secrets:
            raise SettingError(_SETTING, f"key {key_id!r} is there twice")
        secrets[key_id] = _check_secret(key_id, secret)
    return secrets


def _check_secret(key_id: str, secret: object) -> bytes:
    if not isinstance(secret, str | bytes):
        raise SettingError(_SETTING, f"the secret of key {key_id!r} is no text, but {type(secret).__name__}")
    if not secret.strip():
        raise SettingError(_SETTING, f"the secret of key {key_id!r} is blank; make one with: openssl rand -base64 48")
    content = secret if isinstance(secret, bytes) else secret.encode("utf-8", "surrogatepass")
    if len(content) < LEAST_SECRET:
        raise SettingError(_SETTING, f"the secret of key {key_id!r} has {len(content)} bytes, at least {LEAST_SECRET} "
                           "are needed; make one with: openssl rand -base64 48")
    return content
