"""TLS: who gets in, what the flags refuse at start, and new files while connections are open."""

import shutil
import socket
import ssl
import time

import httpx
import pytest
from certificates import Authority, pem_key
from cryptography.hazmat.primitives.asymmetric import ec
from serving import Server, body, read_until, until

from ortloom.commands.serve import make_plan
from ortloom.config import TlsConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.server.listening import url_of
from ortloom.server.tls import RenewedContext, server_context

PAIR = ("--ssl-certfile", "c", "--ssl-keyfile", "k")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger")


def trusting(authority, certificate=None):
    context = ssl.create_default_context(cafile=str(authority.file))
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def plan(*tokens):
    return make_plan(["m", *tokens], read_environment({}), flag_table())[1]


def test_flags_reach_the_configuration(authority):
    certificate, key = authority.sign("flags")
    made = plan(
        *("--ssl-certfile", certificate, "--ssl-keyfile", key, "--enable-ssl-refresh"),
        *("--ssl-ca-certs", str(authority.file), "--ssl-cert-reqs", "2"),
        *("--ssl-ciphers", "ECDHE+AESGCM"),
    )
    assert made.config.front.tls == TlsConfig(
        certfile=certificate,
        keyfile=key,
        ca_certs=str(authority.file),
        cert_reqs=2,
        ciphers="ECDHE+AESGCM",
        refresh=True,
    )
    assert plan().config.front.tls is None


@pytest.mark.parametrize(
    ("tokens", "named"),
    [
        (["--ssl-keyfile", "k"], "--ssl-keyfile needs --ssl-certfile"),
        (["--ssl-certfile", "c"], "--ssl-certfile needs --ssl-keyfile"),
        (["--ssl-ciphers", "x"], "--ssl-ciphers needs --ssl-certfile"),
        (["--ssl-ca-certs", "x"], "--ssl-ca-certs needs --ssl-certfile"),
        (["--enable-ssl-refresh"], "--enable-ssl-refresh needs --ssl-certfile"),
        (["--ssl-cert-reqs", "2"], "--ssl-cert-reqs needs"),
        (
            [*PAIR, "--ssl-cert-reqs", "1"],
            "--ssl-cert-reqs needs --ssl-ca-certs",
        ),
        (
            [*PAIR, "--ssl-ca-certs", "a", "--ssl-cert-reqs", "3"],
            "must be 0",
        ),
    ],
)
def test_half_a_setting_is_refused(tokens, named):
    with pytest.raises(ConfigError, match=named):
        plan(*tokens)


def test_each_bad_file_is_named(authority, stranger, tmp_path):
    certificate, key = authority.sign("good")
    other = stranger.sign("other")
    junk = tmp_path / "junk"
    junk.write_text("no pem")
    locked = tmp_path / "locked.key"
    locked.write_bytes(pem_key(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    for tls, words in (
        (TlsConfig(certfile="/nowhere", keyfile=key), "--ssl-certfile: cannot read '/nowhere'"),
        (TlsConfig(certfile=certificate, keyfile=str(tmp_path)), "--ssl-keyfile: cannot read"),
        (TlsConfig(certfile=str(junk), keyfile=key), "--ssl-certfile: .* no PEM certificate"),
        (TlsConfig(certfile=certificate, keyfile=str(junk)), "--ssl-keyfile: .* no PEM private"),
        (TlsConfig(certfile=certificate, keyfile=other[1]), "is not the key of the certificate"),
        (TlsConfig(certfile=certificate, keyfile=str(locked)), "is encrypted"),
        (
            TlsConfig(certfile=certificate, keyfile=key, ca_certs=str(junk)),
            "--ssl-ca-certs: .* no PEM certificate",
        ),
        (TlsConfig(certfile=certificate, keyfile=key, ciphers="NO-SUCH"), "--ssl-ciphers"),
    ):
        with pytest.raises(ConfigError, match=words):
            server_context(tls)


def test_half_renewed_files_leave_the_old_ones(authority, stranger, tmp_path):
    certificate, key = map(tmp_path.joinpath, ("tls.crt", "tls.key"))
    first, second = authority.sign("first"), stranger.sign("second")
    shutil.copy(first[0], certificate)
    shutil.copy(first[1], key)
    renewed = RenewedContext(TlsConfig(certfile=str(certificate), keyfile=str(key), refresh=True))
    assert not renewed.look()
    shutil.copy(second[0], certificate)
    assert not renewed.look()  # the key is still the old one
    key.unlink()
    assert not renewed.look()
    shutil.copy(second[1], key)
    assert renewed.look()


class SecureServer(Server):
    """Reached over TLS by its own client."""

    def __init__(self, bundle, tls, context, **more):
        super().__init__(bundle, tls=tls, **more)
        self.url = f"https://127.0.0.1:{self.port}"
        self.client.close()
        self.client = httpx.Client(base_url=self.url, verify=context, timeout=30)

    def connect_with(self, context):
        return context.wrap_socket(super().connect(), server_hostname="127.0.0.1")


def issuer_of(server, context):
    """Common name of the certificate that a new connection is shown."""
    with server.connect_with(context) as sock:
        shown = sock.getpeercert()
    return dict(pair[0] for pair in shown["subject"])["commonName"]


def test_client_certificates_and_renewal(bundle, authority, stranger, tmp_path):
    """One server: 1. only clients with a certificate of the right authority get in, plain HTTP and
    old ciphers do not. 2. New files reach new connections while an open stream goes on."""
    certificate, key, clients = map(tmp_path.joinpath, ("tls.crt", "tls.key", "clients.pem"))
    for source, target in zip(authority.sign("first"), (certificate, key), strict=True):
        shutil.copy(source, target)
    shutil.copy(authority.file, clients)
    tls = TlsConfig(
        certfile=str(certificate),
        keyfile=str(key),
        ca_certs=str(clients),
        cert_reqs=2,
        ciphers="ECDHE-ECDSA-AES256-GCM-SHA384",
        refresh=True,
    )
    known = trusting(authority, authority.sign("known", client=True))
    unknown = trusting(authority, stranger.sign("unknown", client=True))
    with SecureServer(bundle, tls, known, env={"FAKE_STEP": "0.01"}) as server:
        assert server.complete().status_code == 200
        assert f"Serving on https://127.0.0.1:{server.port}" in server.text()
        for context in (unknown, trusting(authority)):
            with pytest.raises((httpx.TransportError, ssl.SSLError)):
                httpx.get(f"{server.url}/v1/models", verify=context)
        assert not server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").startswith(b"HTTP/1.1 2")
        # TLS 1.2 is offered with the one cipher that was asked for
        old = trusting(authority, authority.sign("old", client=True))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with server.connect_with(old) as sock:
            assert sock.cipher()[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"
        old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        with pytest.raises((ssl.SSLError, ConnectionError)):
            server.connect_with(old).close()
        # a refused request's reply can be read, also while the client still sends
        with server.connect_with(known) as sock:
            sock.sendall(server.request(b"x" * 100, headers=["X-Big: " + "a" * 200_000]))
            assert b" 431 " in read_until(sock, b"}}")

        with server.connect_with(known) as stream:
            stream.sendall(server.request(body(max_tokens=400, ignore_eos=True, stream=True)))
            read_until(stream, b"data: ")
            for source, target in zip(stranger.sign("second"), (certificate, key), strict=True):
                shutil.copy(source, target)
            shutil.copy(stranger.file, clients)
            swapped = trusting(stranger, stranger.sign("known too", client=True))
            swapped.load_verify_locations(str(authority.file))

            def renewed():
                try:
                    return issuer_of(server, swapped) == "second"
                except (ssl.SSLError, ConnectionError):
                    return False

            until(renewed, 20, 0.2)
            read_until(stream, b"[DONE]")
            begin = time.monotonic()
            stream.sendall(server.request(body()))  # the open connection goes on
            read_until(stream, b'"finish_reason":"length"')
            assert time.monotonic() - begin < 20
        known.load_verify_locations(str(stranger.file))
        with pytest.raises((httpx.TransportError, ssl.SSLError)):  # its authority is gone
            httpx.get(f"{server.url}/v1/models", verify=known)
        server.client.close()
        server.client = httpx.Client(base_url=server.url, verify=swapped)


def test_https_address_is_shown():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert url_of(listener, tls=True) == f"https://127.0.0.1:{port}"
        assert url_of(listener) == f"http://127.0.0.1:{port}"
