"""Reads an arrived completion, with all checks that need no database."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell._client.completions.offload import LargeTextThread
from stepwell._client.completions.result import FOREIGN
from stepwell._core.interaction import Answer
from stepwell._core.resume_token import TokenFacts, TokenKeys, key_of
from stepwell._core.serialization.codec import encode_raw, encode_value
from stepwell._core.validation import check_key, check_tenant, check_uuid
from stepwell.config import Settings
from stepwell.errors import InvalidInput, InvalidToken, PayloadTooLarge


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One completion of valid form: what it names, and its reply, as text if no type is needed to write it."""

    named: tuple[str | None, str | None, str]
    reply: Any
    text: str | None
    actor: str | None
    facts: TokenFacts | None
    token_key: str | None  # that signed the facts
    token_error: InvalidToken | None  # of a token given beside a name: raised once the interaction is found

    @property
    def shown(self) -> str:
        return self.named[0] or f"with correlation {self.named[1]}"


class CallReader:
    """Reads the completions of one client, with its token keys and its default tenant."""

    def __init__(self, settings: Settings, keys: TokenKeys, large_texts: LargeTextThread) -> None:
        self._settings = settings
        self._keys = keys
        self._large_texts = large_texts

    async def read(self, completion: Answer) -> Call:
        """Check a completion as far as possible without the database."""
        facts, token_error = None, None
        try:
            facts = None if completion.token is None else self._verify(completion.token)
        except InvalidToken as error:
            if completion.interaction is None and completion.correlation is None:
                raise
            token_error = error
        named = self._named(completion, facts)
        if facts is not None and not facts.is_of(*named[:2]):
            token_error = InvalidToken(None, FOREIGN)  # whether or not the interaction exists
        # JSON that came with an invalid token is not decoded.
        is_read = token_error is None or not isinstance(completion.reply, msgspec.Raw)
        text = None
        if is_read:
            is_raw = isinstance(completion.reply, msgspec.Raw)
            text = await self._text_of(completion.reply) if is_raw else self._encoded(completion.reply)
        return Call(
            named=named,
            reply=completion.reply,
            text=text,
            actor=None if completion.actor is None else check_key("actor", completion.actor),
            facts=facts,
            token_key=key_of(completion.token) if facts is not None and completion.token is not None else None,
            token_error=token_error,
        )

    async def _text_of(self, reply: msgspec.Raw) -> str:
        """Received JSON, checked."""
        raw = bytes(reply)
        return await self._large_texts.run(len(raw), encode_raw, raw, "reply", self._settings.max_payload)

    def _encoded(self, reply: object) -> str | None:
        """The reply as JSON; None if only its type can encode it."""
        try:
            return encode_value(reply, "reply", self._settings.max_payload)
        except PayloadTooLarge:
            raise
        except InvalidInput:
            return None

    def _verify(self, token: object) -> TokenFacts:
        if not isinstance(token, str) or not token.strip():
            raise InvalidToken(None, "the token is blank; leave it out, or pass it as it was issued")
        return self._keys.verify(token)

    def _named(self, completion: Answer, facts: TokenFacts | None) -> tuple[str | None, str | None, str]:
        default = self._settings.tenant if facts is None else facts.tenant
        tenant = default if completion.tenant is None else completion.tenant
        check_tenant(tenant)
        if completion.interaction is None and completion.correlation is None:
            if facts is None:
                raise InvalidInput("interaction", "name the interaction by its id, its correlation or its token")
            return facts.interaction, None, tenant
        return (
            None if completion.interaction is None else check_uuid("interaction", completion.interaction),
            None if completion.correlation is None else check_uuid("correlation", completion.correlation),
            tenant,
        )
