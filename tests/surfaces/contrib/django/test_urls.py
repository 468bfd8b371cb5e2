"""From DATABASES to the engine's URL: the engine connects to the server that Django connects to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from asyncpg.connect_utils import _parse_connect_dsn_and_args

from stepwell import SettingError
from stepwell.contrib.django.databases import IGNORED, PASSED, url_of

PLAIN = {"NAME": "shop", "USER": "app", "PASSWORD": "secret", "HOST": "db.example.org", "PORT": "5433"}


def understood(url: str) -> tuple[list[Any], Any]:
    """The addresses and parameters that the engine's driver takes from a URL."""
    none = dict.fromkeys(
        ("host", "port", "user", "password", "passfile", "database", "ssl", "service", "servicefile", "direct_tls",
         "server_settings", "target_session_attrs", "krbsrvname", "gsslib")
    )  # fmt: skip
    addresses, params = _parse_connect_dsn_and_args(dsn=url, **none)
    return addresses, params


def test_the_url_has_host_port_user_password_and_name() -> None:
    url = url_of("default", PLAIN)

    addresses, params = understood(url)
    assert url == "postgresql://app:secret@db.example.org:5433/shop"
    assert addresses == [("db.example.org", 5433)]
    assert (params.user, params.password, params.database) == ("app", "secret", "shop")


@pytest.mark.parametrize("odd", ["p@ss:w/rd", "100%", "a b", "ümläut", "#?&=", "'\"", "[x]"])
def test_odd_characters_arrive_unchanged_in_the_url(odd: str) -> None:
    _, params = understood(url_of("default", {**PLAIN, "USER": odd, "PASSWORD": odd, "NAME": odd}))

    assert (params.user, params.password, params.database) == (odd, odd, odd)


def test_the_url_has_a_unix_socket(tmp_path: Path) -> None:
    addresses, _ = understood(url_of("default", {**PLAIN, "HOST": str(tmp_path)}))

    assert addresses == [f"{tmp_path}/.s.PGSQL.5433"]


def test_the_url_has_an_address_of_ipv6() -> None:
    addresses, _ = understood(url_of("default", {**PLAIN, "HOST": "::1"}))

    assert addresses == [("::1", 5433)]


def test_the_url_has_several_hosts() -> None:
    addresses, _ = understood(url_of("default", {**PLAIN, "HOST": "a,b", "PORT": "1,2"}))

    assert addresses == [("a", 1), ("b", 2)]


def test_without_a_user_the_driver_takes_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "somebody")

    _, params = understood(url_of("default", {"NAME": "shop"}))

    assert params.user == "somebody"


def test_the_url_has_sslmode_and_other_options_of_the_driver() -> None:
    options = {"sslmode": "require", "options": "-c search_path=shop,public", "assume_role": "clerk", "pool": True}

    _, params = understood(url_of("default", {**PLAIN, "OPTIONS": options}))

    assert params.ssl is not None
    assert params.sslmode.name == "require"
    assert params.server_settings == {"options": "-c search_path=shop,public", "role": "clerk"}


def test_a_service_needs_no_name() -> None:
    assert url_of("default", {"NAME": "", "OPTIONS": {"service": "shop"}}) == "postgresql://?service=shop"


def test_an_option_that_would_get_lost_is_refused_by_name() -> None:
    with pytest.raises(SettingError) as caught:
        url_of("replica", {**PLAIN, "OPTIONS": {"channel_binding": "require"}})

    assert caught.value.setting == "DATABASES['replica']['OPTIONS']['channel_binding']"
    assert "STEPWELL['URL']" in str(caught.value)


def test_a_database_without_a_name_is_refused() -> None:
    with pytest.raises(SettingError, match=r"DATABASES\['default'\]\['NAME'\]"):
        url_of("default", {"NAME": ""})


def test_an_option_is_either_passed_or_ignored() -> None:
    assert not PASSED & IGNORED
