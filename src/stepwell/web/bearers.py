"""Bearer tokens: the caller, the interactions that it sees, and what it may do with them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Final, Literal, TypeAlias

from stepwell._core.validation import check_key, check_tenant
from stepwell.errors import InvalidInput

Scope: TypeAlias = Literal["read", "complete"]
SCOPES: Final = ("read", "complete")
LEAST_SECRET = 32
_SECRET = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # the characters that RFC 6750 allows in a header


class BearerToken:
    """A caller: `BearerToken(secret, scopes={"complete"}, tenant="acme", actor="ana")`.

    It sees only the interactions of its tenant; without one, those of the engine's own tenant. `actor` is kept with
    each of its completions; without one, the actor that the request names. The secret itself is not kept.
    """

    __slots__ = ("actor", "digest", "scopes", "tenant")

    def __init__(
        self, secret: str, *, scopes: Iterable[Scope], tenant: str | None = None, actor: str | None = None
    ) -> None:
        self.digest = _digest(_check_secret(secret))
        self.scopes = _check_scopes(scopes)
        self.tenant = None if tenant is None else check_tenant(tenant)
        self.actor = None if actor is None else check_key("actor", actor)

    def __repr__(self) -> str:
        return f"BearerToken(scopes={sorted(self.scopes)}, tenant={self.tenant!r}, actor={self.actor!r})"


class Bearers:
    """All bearer tokens of an application."""

    def __init__(self, tokens: Iterable[BearerToken]) -> None:
        self._tokens = list(tokens)
        for token in self._tokens:
            if not isinstance(token, BearerToken):
                raise InvalidInput("tokens", f"expected a list of BearerToken, got {type(token).__name__} in it")
        if len({token.digest for token in self._tokens}) < len(self._tokens):
            raise InvalidInput("tokens", "two of them have the same secret; one secret is one caller")

    def __len__(self) -> int:
        return len(self._tokens)

    def name(self, token: BearerToken) -> str:
        """A token's name in the log: its position, since neither its secret nor the hash of it belongs in the log."""
        shown = [f"{field} {value!r}" for field in ("actor", "tenant") if (value := getattr(token, field)) is not None]
        return f"tokens[{self._tokens.index(token)}]" + (f" ({', '.join(shown)})" if shown else "")

    def find(self, secret: str) -> BearerToken | None:
        """The token of this secret. All are compared, each in constant time, so that the duration tells nothing."""
        digest, found = _digest(secret), None
        for token in self._tokens:
            if compare_digest(token.digest, digest):
                found = token
        return found


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _check_secret(secret: object) -> str:
    if not isinstance(secret, str):
        raise InvalidInput("secret", f"expected a string, got {type(secret).__name__}")
    if len(secret) < LEAST_SECRET:
        raise InvalidInput("secret", f"has {len(secret)} characters, at least {LEAST_SECRET} are needed; "
                           "make one with: openssl rand -base64 48")
    if not _SECRET.fullmatch(secret):
        raise InvalidInput("secret", "has a character that no Authorization header carries; use letters, digits and "
                           "-._~+/, with = at the end only")
    return secret


def _check_scopes(scopes: object) -> frozenset[str]:
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        raise InvalidInput("scopes", f"expected a set of {' and '.join(SCOPES)}, got {scopes!r}")
    found = list(scopes)
    if not found:
        raise InvalidInput("scopes", f"is empty: such a token may do nothing; choose from {' and '.join(SCOPES)}")
    for scope in found:
        if scope not in SCOPES:
            raise InvalidInput("scopes", f"there is no scope {scope!r}; choose from {' and '.join(SCOPES)}")
    return frozenset(found)
