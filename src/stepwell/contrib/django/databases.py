"""The URL of the engine, which has its own driver, from an entry of DATABASES."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from stepwell.errors import SettingError

# Options that the engine's driver reads as libpq does.
PASSED = frozenset({
    "gsslib", "krbsrvname", "options", "passfile", "service", "ssl_max_protocol_version", "ssl_min_protocol_version",
    "sslcert", "sslcrl", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs",
})  # fmt: skip
# Options of Django's own connections: they change neither the server nor the security.
IGNORED = frozenset({
    "application_name", "autocommit", "client_encoding", "connect_timeout", "context", "cursor_factory",
    "fallback_application_name", "isolation_level", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "pool", "prepare_threshold", "row_factory", "server_side_binding", "tcp_user_timeout",
})  # fmt: skip


def database_url(alias: str) -> str:
    """The URL of that database; inside Django's test runner, of its test database."""
    try:
        connection = connections[alias]
    except ConnectionDoesNotExist as error:
        known = ", ".join(repr(name) for name in connections)
        raise SettingError("STEPWELL['DATABASE']", f"{alias!r} is not in DATABASES (there are: {known})") from error
    if connection.vendor != "postgresql":
        raise SettingError(
            "STEPWELL['DATABASE']",
            f"DATABASES[{alias!r}] is {connection.vendor}, and Stepwell runs on Postgres only; name an alias with "
            "ENGINE 'django.db.backends.postgresql'",
        )
    return url_of(alias, connection.settings_dict)


def url_of(alias: str, entry: Mapping[str, Any]) -> str:
    """The URL of an entry of DATABASES."""
    options = dict(entry.get("OPTIONS") or {})
    query = _query(alias, options)
    name, host = entry.get("NAME"), str(entry.get("HOST") or "")
    if not name and "service" not in query:
        raise SettingError(f"DATABASES[{alias!r}]['NAME']", "is empty; name the database")
    port = str(entry.get("PORT") or "")
    if not host or host.startswith("/") or "," in host:  # a socket, or several hosts, which have no place in an address
        address = ""
        query |= {key: value for key, value in (("host", host), ("port", port)) if value}
    else:
        address = f"[{host}]" if ":" in host else quote(host, safe="")
        address += f":{port}" if port else ""
    path = f"/{quote(str(name), safe='')}" if name else ""
    asked = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return f"postgresql://{_credentials(entry)}{address}{path}{asked}"


def _credentials(entry: Mapping[str, Any]) -> str:
    user, password = entry.get("USER"), entry.get("PASSWORD")
    if not user and not password:
        return ""
    return quote(str(user or ""), safe="") + (f":{quote(str(password), safe='')}" if password else "") + "@"


def _query(alias: str, options: Mapping[str, Any]) -> dict[str, str]:
    query = {}
    for key, value in options.items():
        if key in PASSED:
            query[key] = str(value)
        elif key == "assume_role":
            query["role"] = str(value)
        elif key not in IGNORED:
            raise SettingError(
                f"DATABASES[{alias!r}]['OPTIONS'][{key!r}]",
                "is unknown to the driver of the engine (asyncpg); set the database URL in STEPWELL['URL']",
            )
    return query
