"""TLS of the public face: real handshakes, certificates that change under a running node, unfinished handshakes."""

import asyncio
import socket
import ssl
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from node import acceptor as module
from node.cli.console.client import Client, NodeEndpoint
from node.config.web import WebSettings
from node.connection_limits import ConnectionCounts
from node.errors import NoNode
from node.listeners import Listener
from node.tls import Certificate
from tests import certificates
from tests.node.faces.assembly import until


@asynccontextmanager
async def served(folder, **limits):
    """Yield a server with a certificate, and a client's context that trusts it."""
    files = certificates.write(folder)

    async def echo(request):
        return web.json_response(
            {"scheme": request.scheme, "body": await request.text(), "remote": request.remote}
        )

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", echo)
    listener = socket.create_server(("127.0.0.1", 0))
    counts = ConnectionCounts()
    certificate = Certificate(*files)
    server = Listener(app, WebSettings(**limits), counts, certificate=certificate)
    await server.listen_on(listener)
    trusting = ssl.create_default_context(cafile=files[0])
    try:
        yield server, certificate, listener.getsockname(), trusting, counts
    finally:
        await server.close(within=0.1)


def open_files():
    """Return the number of this process's open files."""
    return len([*Path("/proc/self/fd").iterdir()])


async def shown(address, name="127.0.0.1"):
    """Return the serial number of the certificate that the server presents."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*address, ssl=context)
    der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return x509.load_der_x509_certificate(der).serial_number


async def test_clients_that_trust_the_certificate_are_served_as_over_plain_http(tmp_path):
    async with served(tmp_path) as (_, _, (host, port), trusting, counts):
        connector = aiohttp.TCPConnector(ssl=trusting)
        async with aiohttp.ClientSession(f"https://{host}:{port}", connector=connector) as http:
            for body in ("hi", "x" * 300_000):
                async with http.post("/a", data=body) as response:
                    assert response.headers["Strict-Transport-Security"] == "max-age=31536000"
                    assert await response.json() == {
                        "scheme": "https",
                        "body": body,
                        "remote": "127.0.0.1",
                    }
            assert counts.open == 1
        await until(lambda: counts.open == 0)


async def test_bytes_that_come_with_the_end_of_the_handshake_are_read(tmp_path):
    async with served(tmp_path) as (_, _, address, trusting, _):
        for _ in range(20):
            reader, writer = await asyncio.open_connection(*address, ssl=trusting)
            writer.write(b"GET /a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
            writer.transport.abort()


async def test_plain_http_and_nonsense_are_cut_off(tmp_path):
    async with served(tmp_path) as (_, _, address, _, counts):
        for data in (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"\x16\x03\x01nonsense",
            b"\0" * 100_000,
        ):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(data)
            with suppress(ConnectionError):
                assert not (await reader.read(1000)).startswith(b"HTTP")
            writer.transport.abort()
        await until(lambda: counts.open == 0)


async def test_an_unfinished_handshake_takes_a_place_until_it_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.5)
    async with served(tmp_path) as (_, _, address, _, counts):
        silent = [await asyncio.open_connection(*address) for _ in range(5)]
        await until(lambda: counts.open == 5)
        for reader, _ in silent:
            async with asyncio.timeout(10):
                assert await reader.read() == b""
        assert counts.open == 0
        for _, writer in silent:
            writer.transport.abort()


async def test_many_silent_connections_make_room_for_a_new_one(tmp_path):
    async with served(tmp_path, connections=20, connections_per_address=10) as served_:
        _, _, address, trusting, counts = served_
        silent = [await asyncio.open_connection(*address) for _ in range(50)]
        reader, writer = await asyncio.open_connection(*address, ssl=trusting)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        assert counts.open <= 10
        for _, one in [*silent, (reader, writer)]:
            one.transport.abort()


async def test_silent_connections_that_were_evicted_keep_no_file_open(tmp_path):
    async with served(tmp_path, connections=20, connections_per_address=10) as served_:
        _, _, address, trusting, counts = served_
        before = open_files()
        silent = []
        for _ in range(50):
            # A raw socket behind the TLS object never answers the goodbye.
            outgoing, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting.wrap_bio(incoming, outgoing, server_hostname=address[0])
            reader, writer = await asyncio.open_connection(*address)
            while True:
                with suppress(ssl.SSLWantReadError):
                    tls.do_handshake()
                    break
                writer.write(outgoing.read())
                incoming.write(await reader.read(2**16))
            writer.write(outgoing.read())
            silent.append((reader, writer))
        try:
            await until(lambda: counts.open <= 10)
            # The sockets of the callers, which are in this process too, those that the server still counts, and the loop's own.
            await until(lambda: open_files() - before <= 50 + 10 + 5, seconds=20)
        finally:
            for _, writer in silent:
                writer.transport.abort()


async def test_a_new_certificate_is_presented_to_the_next_connection(tmp_path, caplog):
    caplog.set_level("INFO")
    async with served(tmp_path) as (_, certificate, address, _, _):
        before = await shown(address)
        certificate.reload_if_changed()
        assert await shown(address) == before
        certificates.write(tmp_path)
        certificate.reload_if_changed()
        after = await shown(address)
        assert after != before
        assert "new connections use the new certificate" in caplog.text
        (tmp_path / "cert.pem").write_text("half of")
        for _ in range(3):
            certificate.reload_if_changed()
        assert await shown(address) == after
        assert caplog.text.count("keeping the old certificate") == 1
        (tmp_path / "cert.pem").unlink()
        for _ in range(3):
            certificate.reload_if_changed()
        assert await shown(address) == after
        assert caplog.text.count("keeping the old certificate") == 2
        certificates.write(tmp_path)
        certificate.reload_if_changed()
        assert await shown(address) not in (before, after)


def test_unusable_certificate_files_are_refused_with_a_sentence(tmp_path):
    chain, key = certificates.write(tmp_path)
    with pytest.raises(OSError, match="cannot be read: No such file"):
        Certificate(chain, tmp_path / "nothing.pem")
    key.chmod(0o644)
    with pytest.raises(OSError, match="chmod o="):
        Certificate(chain, key)
    key.chmod(0o640)
    Certificate(chain, key)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(OSError, match="not a certificate and its key"):
        Certificate(chain, certificates.write(other)[1])
    shut = certificates.write(tmp_path, password=b"secret")
    with pytest.raises(OSError, match="without a password"):
        Certificate(*shut)


async def test_a_command_says_what_is_wrong_with_the_certificate_that_it_expects(tmp_path):
    async with served(tmp_path) as (_, _, address, _, _):
        file = tmp_path / "expected.pem"

        async def refusal():
            url = f"https://{address[0]}:{address[1]}"
            client = Client(NodeEndpoint(url, "--node", certificate=str(file)))
            with pytest.raises(NoNode) as caught:
                await asyncio.to_thread(client.get, "/", holds="ready")
            return str(caught.value)

        assert f"cannot be read from {file}: No such file" in await refusal()
        file.write_text("half of")
        assert f"cannot be read from {file}: it is no PEM file" in await refusal()
        other = tmp_path / "other"
        other.mkdir()
        certificates.write(other)
        file.write_bytes((other / "cert.pem").read_bytes())
        assert f"is not the one in {file}: " in await refusal()
