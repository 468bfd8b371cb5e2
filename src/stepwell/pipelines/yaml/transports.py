"""Transports as a pipeline's file describes them: read, checked, and built with what must not be in a file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, TypeAlias
from urllib.parse import urlsplit

import msgspec

from stepwell.errors import DefinitionError
from stepwell.pipelines.yaml.keys import near_miss
from stepwell.pipelines.yaml.reader import Section
from stepwell.transports.base import Transport
from stepwell.transports.webhook.headers import read_headers
from stepwell.transports.webhook.urls import read_target

TransportOptions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keywords for transports, by the type or the name of a transport: secrets, servers, credentials."""

MANUAL: Final = "manual"
COMPLETION_PATH: Final = "/interactions/complete"
_KEYS: Final = ("interactionId", "correlationId")
_CLASSES: Final = {
    "interaction-api": "manual:Manual", "webhook": "webhook.transport:Webhook", "kafka": "kafka.transport:Kafka",
    "nats": "nats.transport:Nats", "sqs": "sqs.transport:Sqs",
}  # fmt: skip
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_DURABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_NO_SECRETS: Final = "does not belong in a file; pass it in Python: load(…, transports={%r: {%r: …}})"


class TransportSpec(msgspec.Struct, frozen=True):
    """A transport that a file describes. The same name with the same options, at another await step, is the same
    one.
    """

    type: str
    name: str
    options: dict[str, Any]
    line: int

    def is_like(self, other: TransportSpec) -> bool:
        return (self.type, self.name, self.options) == (other.type, other.name, other.options)


def read_transport(section: Section, default: str) -> tuple[str | None, TransportSpec | None]:
    """The name of an await step's transport; and the transport, unless it is one of the engine's own."""
    name = section.text("name")
    if not section.has("type"):
        if not section.has("name"):
            section.problem(f"is missing; one of {', '.join(_CLASSES)}, or name one of the engine's with name:", "type")
        section.finish()
        return name, None
    kind = section.text("type")
    if kind is None:
        return None, None
    if kind not in _CLASSES:
        section.problem(f"{kind!r} is none of {', '.join(_CLASSES)}{near_miss(kind, list(_CLASSES))}; a transport of "
                        "your own is used by name: transport: {name: …}, without a type", "type")  # fmt: skip
        return None, None
    for key in ("secret", "token", "password", "credentials", "brokers", "servers"):
        section.refuse(key, _NO_SECRETS % (kind, key))
    options = _READERS[kind](section, default)
    section.finish()
    if kind == "interaction-api" and name in (None, MANUAL):
        return MANUAL, None
    name = name or default
    return name, TransportSpec(kind, name, options, section.line)


def build(spec: TransportSpec, given: TransportOptions) -> Transport:
    """The transport; ValueError says which keyword it still needs, or what it refuses."""
    file, _, name = _CLASSES[spec.type].partition(":")
    try:
        kind: Callable[..., Transport] = getattr(import_module(f"stepwell.transports.{file}"), name)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no transport over {spec.type} in this Stepwell") from error
    options = {**spec.options, **given.get(spec.type, {}), **given.get(spec.name, {})}
    taken = inspect.signature(kind).parameters
    for option in options:
        if option not in taken:
            raise ValueError(f"{name} takes no {option!r}{near_miss(option, list(taken))}")
    for needed in list(taken.values())[1:]:
        if needed.default is needed.empty and needed.name not in options:
            raise ValueError(f"{name} needs {needed.name}=, which {_NO_SECRETS % (spec.type, needed.name)}")
    try:
        return kind(spec.name, **options)
    except DefinitionError as error:
        raise ValueError(str(error)) from error


def _manual(section: Section, default: str) -> dict[str, Any]:
    return {}


def _webhook(section: Section, default: str) -> dict[str, Any]:
    options: dict[str, Any] = {"headers": _headers(section)}
    if (url := _url(section)) is not None:
        options["url"] = url
    if (method := section.text("method")) is not None and method.upper() != "POST":
        section.problem(f"interactions are sent by POST, not by {method}", "method")
    if section.has("timeout") and section.has("timeoutMillis"):
        section.problem("timeout is given too; remove one of them", "timeoutMillis")
    if (timeout := section.duration("timeout")) is not None:
        options["timeout"] = timeout
    if (millis := section.whole("timeoutMillis", least=1, most=600_000)) is not None:
        options["timeout"] = timedelta(milliseconds=millis)
    if (callback := section.section("callback")) is not None:
        options["callback"] = _callback(callback)
    return options


def _url(section: Section) -> str | None:
    """The URL under `request`, under `dispatch`, or at the top, in this order."""
    found: list[str] = []
    for key in ("request", "dispatch"):
        if section.has(key) and (inner := section.section(key)) is not None:
            if (url := _address(inner, "url", required=True)) is not None:
                found.append(url)
            inner.finish()
    if not section.has("url") and not section.has("request") and not section.has("dispatch"):
        section.problem("is missing; also request.url or dispatch.url", "url")
    elif (url := _address(section, "url")) is not None:
        found.append(url)
    return found[0] if found else None


def _callback(section: Section) -> str | None:
    url = _address(section, "completionUrl")
    base = _address(section, "baseUrl")
    path = section.text("completionPath")
    if not section.has("completionUrl") and not section.has("baseUrl"):
        section.problem("is missing; or completionUrl", "baseUrl")
    section.finish()
    if url is not None or base is None:
        return url
    return f"{base.rstrip('/')}/{(path or COMPLETION_PATH).lstrip('/')}"


def _kafka(section: Section, default: str) -> dict[str, Any]:
    options: dict[str, Any] = {"headers": section.named_texts("headers")}
    if not section.has("request"):
        section.problem("is missing", "request.topic")
    elif (request := section.section("request")) is not None:
        options["requests"] = _checked(request, "topic", _check_topic)
        if (key := request.choice("key", _KEYS)) is not None:
            options["key"] = key
        request.finish()
    options["responses"] = _inner(section, "response", "topic", _check_topic)
    group = section.text("consumerGroup")
    if section.has("consumer"):
        inner = _inner(section, "consumer", "group")
        if group is not None:
            section.problem("consumer.group is given too; remove one of them", "consumerGroup")
        group = inner
    return {**options, "group": group or default}


def _sqs(section: Section, default: str) -> dict[str, Any]:
    return {
        "headers": section.named_texts("headers"), "requests": _inner(section, "request", "queueUrl", _check_queue),
        "responses": _inner(section, "response", "queueUrl", _check_queue),
    }  # fmt: skip


def _nats(section: Section, default: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "headers": section.named_texts("headers"), "requests": _inner(section, "request", "subject", _check_subject),
        "responses": _inner(section, "response", "subject", _check_subject),
    }  # fmt: skip
    if section.has("consumer"):
        options["durable"] = _inner(section, "consumer", "durable", _check_durable)
    return options


_READERS: Final[dict[str, Callable[[Section, str], dict[str, Any]]]] = {
    "interaction-api": _manual, "webhook": _webhook, "kafka": _kafka, "nats": _nats, "sqs": _sqs,
}  # fmt: skip


def _inner(section: Section, outer: str, key: str, check: Callable[[str], str | None] | None = None) -> str | None:
    """One required key of a required mapping."""
    inner = section.section(outer)
    if inner is None:
        if not section.has(outer):
            section.problem("is missing", f"{outer}.{key}")
        return None
    text = _checked(inner, key, check)
    inner.finish()
    return text


def _checked(section: Section, key: str, check: Callable[[str], str | None] | None) -> str | None:
    text = section.text(key, required=True)
    if text is not None and check is not None and (problem := check(text)) is not None:
        section.problem(problem, key)
        return None
    return text


def _address(section: Section, key: str, *, required: bool = False) -> str | None:
    url = section.text(key, required=required)
    if url is None:
        return None
    try:
        return read_target(url).url
    except ValueError as error:
        section.problem(str(error), key)
        return None


def _headers(section: Section) -> dict[str, str]:
    headers = section.named_texts("headers")
    try:
        return read_headers(headers)
    except ValueError as error:
        section.problem(str(error), "headers")
        return {}


def _check_queue(url: str) -> str | None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.path.strip("/"):
        return f"expected the URL of a queue, as https://sqs.eu-west-1.amazonaws.com/123/requests, got {url!r}"
    if parts.path.rstrip("/").lower().endswith(".fifo"):
        return "a FIFO queue stops behind a completion that is not settled; use a standard queue"
    return None


def _check_topic(topic: str) -> str | None:
    return None if _TOPIC.fullmatch(topic) else f"expected a topic of letters, digits, dots, - and _, got {topic!r}"


def _check_subject(subject: str) -> str | None:
    return None if _SUBJECT.fullmatch(subject) else f"expected a subject without wildcards, got {subject!r}"


def _check_durable(durable: str) -> str | None:
    return None if _DURABLE.fullmatch(durable) else f"expected letters, digits, - and _, got {durable!r}"
