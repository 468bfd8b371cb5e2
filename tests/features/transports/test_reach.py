"""Where a webhook does not go: inside, whatever names, redirects and a changing DNS say."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepwell.transports import SendFailed, Undeliverable
from tests.features.transports.dispatches import make_dispatch
from tests.features.transports.servers import Server, response
from tests.features.transports.test_webhook import opened


class Names:
    """A DNS with responses that change from one lookup to the next; the last one stays."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def at(server: Server, host: str, scheme: str = "http") -> str:
    return f"{scheme}://{host}:{server.port}/ask"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "169.254.169.254"])
async def test_a_public_name_with_a_private_address_is_not_contacted(address: str) -> None:
    names = Names([address])
    async with Server() as server, opened(
        server, url=at(server, "pay.example", "https"), allow_private=False, resolver=names
    ) as webhook:  # fmt: skip
        with pytest.raises(Undeliverable, match="allow_private"):
            await webhook.send(make_dispatch())

    assert server.connections == 0
    assert names.asked == ["pay.example"]


async def test_one_forbidden_address_is_enough_to_refuse_the_name() -> None:
    """Which one of several would be taken is chance."""
    async with Server() as server, opened(
        server, url=at(server, "pay.internal"), allow_private=["127.0.0.0/8"], resolver=Names(["127.0.0.1", "10.0.0.1"])
    ) as webhook:  # fmt: skip
        with pytest.raises(Undeliverable, match=r"pay\.internal \(10\.0\.0\.1\)"):
            await webhook.send(make_dispatch())

    assert server.connections == 0


async def test_a_name_is_resolved_once_and_the_checked_address_is_connected_to() -> None:
    """A DNS that gives one address for the check and another for the connection: there is no second lookup."""
    names = Names(["127.0.0.1"], ["169.254.169.254"])
    async with Server() as server, opened(
        server, url=at(server, "pay.internal"), allow_private=["127.0.0.0/8"], resolver=names
    ) as webhook:  # fmt: skip
        await webhook.send(make_dispatch())

        assert names.asked == ["pay.internal"]
        assert server.requests[0].headers["host"] == f"pay.internal:{server.port}"


async def test_a_name_that_becomes_private_is_refused_at_the_next_connection() -> None:
    names = Names(["127.0.0.1"], ["10.0.0.1"])
    closing = response(202, Connection="close")
    async with Server(default=closing) as server, opened(
        server, url=at(server, "pay.internal"), allow_private=["127.0.0.0/8"], resolver=names
    ) as webhook:  # fmt: skip
        await webhook.send(make_dispatch())
        with pytest.raises(Undeliverable, match=r"10\.0\.0\.1"):
            await webhook.send(make_dispatch(attempt=2))

    assert server.connections == 1


async def test_a_host_that_is_allowed_by_name_is_contacted_and_no_other() -> None:
    settings: dict[str, Any] = {"allow_private": ["pay.internal"], "resolver": Names(["127.0.0.1"])}
    async with Server() as server:
        async with opened(server, url=at(server, "pay.internal"), **settings) as one:
            await one.send(make_dispatch())
        async with opened(server, url=at(server, "other.internal"), **settings) as other:
            with pytest.raises(Undeliverable):
                await other.send(make_dispatch())

    assert server.connections == 1


async def test_names_that_the_operating_system_resolves_are_checked_too() -> None:
    async with Server() as server, opened(
        server, url=at(server, "localhost", "https"), allow_private=False
    ) as webhook:  # fmt: skip
        with pytest.raises(Undeliverable, match=r"localhost .*loopback"):
            await webhook.send(make_dispatch())

    assert server.connections == 0


async def test_an_unknown_name_is_retried() -> None:
    async def unknown(host: str, _: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, f"{host} is unknown")

    async with Server() as server, opened(server, url=at(server, "pay.internal"), resolver=unknown) as webhook:
        with pytest.raises(SendFailed, match="unknown"):
            await webhook.send(make_dispatch())


async def test_redirects_are_not_followed_by_default() -> None:
    async with Server(response(308, Location="/other")) as server, opened(server) as webhook:
        with pytest.raises(SendFailed, match="answered 308"):
            await webhook.send(make_dispatch())

    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_that_keeps_the_post_is_followed_if_enabled(status: int) -> None:
    async with Server(response(status, Location="/other?key=x")) as server, opened(
        server, follow_redirects=True, headers={"X-Key": "mine"}
    ) as webhook:  # fmt: skip
        kept = await webhook.send(make_dispatch())

    assert [request.line for request in server.requests] == ["POST /ask HTTP/1.1", "POST /other?key=x HTTP/1.1"]
    assert server.requests[0].body == server.requests[1].body
    assert server.requests[1].headers["x-key"] == "mine"
    assert kept == {"url": server.url.replace("/ask", "/other"), "statusCode": 202}


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_turn_the_post_into_a_get_fails(status: int) -> None:
    async with Server(response(status, Location="/other")) as server, opened(server, follow_redirects=True) as webhook:
        with pytest.raises(SendFailed, match=f"answered {status}"):
            await webhook.send(make_dispatch())


@pytest.mark.parametrize("location", [
    "http://127.0.0.2:{port}/", "http://localhost:{port}/", "http://[::1]:{port}/", "http://[::ffff:127.0.0.2]:{port}/",
    "http://inside.example:{port}/", "//169.254.169.254/latest/meta-data",
])  # fmt: skip
async def test_a_redirect_to_a_private_address_is_not_followed(location: str) -> None:
    async def names(host: str, _: int) -> Sequence[str]:
        return ["127.0.0.2"]

    async with Server() as server, opened(server, follow_redirects=True, resolver=names) as webhook:
        server.behaviours = [response(307, Location=location.format(port=server.port))]
        with pytest.raises(Undeliverable, match="allow_private"):
            await webhook.send(make_dispatch())

    assert len(server.requests) == 1


@pytest.mark.parametrize("location", ["ftp://pay.example/", "http://0x7f.1/", "http://a b/", "http://ä/"])
async def test_a_redirect_to_an_invalid_url_fails(location: str) -> None:
    async with Server(response(307, Location=location)) as server, opened(server, follow_redirects=True) as webhook:
        with pytest.raises(SendFailed, match="an invalid URL"):
            await webhook.send(make_dispatch())


async def test_another_origin_gets_the_signed_request_without_the_authors_headers() -> None:
    async with Server() as there, Server(response(307, Location=there.url)) as here, opened(
        here, follow_redirects=True, headers={"Authorization": "Bearer key"}
    ) as webhook:  # fmt: skip
        await webhook.send(make_dispatch())

    assert here.requests[0].headers["authorization"] == "Bearer key"
    assert "authorization" not in there.requests[0].headers
    assert "stepwell-signature" in there.requests[0].headers


async def test_the_number_of_redirects_is_bounded() -> None:
    async with (
        Server(default=response(307, Location="/ask")) as server,
        opened(server, follow_redirects=True) as webhook,
    ):
        with pytest.raises(SendFailed, match="more than 5 redirects"):
            await webhook.send(make_dispatch())

    assert len(server.requests) == 6


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of pay.internal, self-signed, with its key in the same file."""
    folder = tmp_path_factory.mktemp("tls")
    both = folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"), "-days", "2",
               "-subj", "/CN=pay.internal", "-addext", "subjectAltName=DNS:pay.internal"]  # fmt: skip
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.with_name("cert.pem")))


async def test_a_tls_name_is_verified_although_the_address_is_pinned(certificate: Path) -> None:
    settings: dict[str, Any] = {"tls": trusting(certificate), "resolver": Names(["127.0.0.1"])}
    async with Server(tls=serving(certificate)) as server:
        async with opened(server, url=at(server, "pay.internal", "https"), **settings) as webhook:
            await webhook.send(make_dispatch())
        async with opened(server, url=at(server, "other.internal", "https"), **settings) as webhook:
            with pytest.raises(SendFailed, match="certificate"):
                await webhook.send(make_dispatch())

    assert [request.headers["host"] for request in server.requests] == [f"pay.internal:{server.port}"]


async def test_an_untrusted_certificate_is_refused(certificate: Path) -> None:
    async with Server(tls=serving(certificate)) as server, opened(
        server, url=at(server, "pay.internal", "https"), resolver=Names(["127.0.0.1"])
    ) as webhook:  # fmt: skip
        with pytest.raises(SendFailed, match="certificate"):
            await webhook.send(make_dispatch())

    assert server.requests == []


async def test_a_redirect_from_https_to_http_is_not_followed(certificate: Path) -> None:
    async with Server() as plain, Server(response(307, Location=plain.url), tls=serving(certificate)) as server, opened(
        server, url=at(server, "pay.internal", "https"), follow_redirects=True, tls=trusting(certificate),
        resolver=Names(["127.0.0.1"]),
    ) as webhook:  # fmt: skip
        with pytest.raises(Undeliverable, match="from https to http"):
            await webhook.send(make_dispatch())

    assert plain.connections == 0


async def test_the_environments_proxy_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would connect to addresses without a check."""
    async with Server() as proxy, Server() as server:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with opened(server) as webhook:
            await webhook.send(make_dispatch())

    assert (proxy.connections, server.connections) == (0, 1)
