"""TLS of the listening socket: the context made from PEM files, and its renewal while serving.

A renewed certificate reaches new connections only; those that are open keep theirs. Files that do
not fit each other (a renewal writes them one after the other) leave the newest good ones in place.
"""

import asyncio
import logging
import os
import ssl
from pathlib import Path

from ortloom.config import TlsConfig
from ortloom.errors import ConfigError

logger = logging.getLogger("ortloom.server")

LOOK_INTERVAL = 1.0
"""Seconds between looks at the files."""

_PROTOCOLS = ["http/1.1"]


class _Encrypted(Exception):
    """OpenSSL wants a passphrase; there is none to give, and nobody to ask."""


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """A context for the server's side of connections.

    Raises:
        ConfigError: a file cannot be read, is no PEM of its kind, or does not belong to the other;
            or there are no such ciphers. The flag is named.
    """
    for flag, path in (
        ("--ssl-certfile", tls.certfile),
        ("--ssl-keyfile", tls.keyfile),
        ("--ssl-ca-certs", tls.ca_certs),
    ):
        if path is not None:
            _readable(flag, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    _load_pair(context, tls)
    context.verify_mode = ssl.VerifyMode(tls.cert_reqs)
    if tls.ca_certs is not None:
        try:
            context.load_verify_locations(tls.ca_certs)
        except ssl.SSLError:
            raise ConfigError(
                f"argument --ssl-ca-certs: '{tls.ca_certs}' holds no PEM certificate"
            ) from None
    if tls.ciphers is not None:
        try:
            context.set_ciphers(tls.ciphers)
        except ssl.SSLError:
            raise ConfigError(
                f"argument --ssl-ciphers: '{tls.ciphers}' selects no cipher that OpenSSL has"
            ) from None
    if tls.refresh and tls.cert_reqs:
        # a resumed session would skip the check against the renewed list of authorities
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    return context


def _readable(flag: str, path: str) -> None:
    try:
        with Path(path).open("rb") as file:
            file.read(1)
    except OSError as error:
        raise ConfigError(f"argument {flag}: cannot read '{path}': {error.strerror}") from None


def _load_pair(context: ssl.SSLContext, tls: TlsConfig) -> None:
    def no_passphrase() -> str:
        raise _Encrypted

    try:
        context.load_cert_chain(tls.certfile, tls.keyfile, no_passphrase)
    except _Encrypted:
        raise ConfigError(
            f"argument --ssl-keyfile: '{tls.keyfile}' is encrypted; the server needs a key without "
            "a passphrase"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(_pair_fault(tls, error)) from None


def _pair_fault(tls: TlsConfig, error: ssl.SSLError) -> str:
    """Which of the two files is at fault; OpenSSL's own text does not say it."""
    if error.reason == "KEY_VALUES_MISMATCH":
        return (
            f"argument --ssl-keyfile: '{tls.keyfile}' is not the key of the certificate in "
            f"'{tls.certfile}' (--ssl-certfile)"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(tls.certfile)
    except ssl.SSLError:
        return f"argument --ssl-certfile: '{tls.certfile}' holds no PEM certificate"
    reason = (error.reason or "").lower().replace("_", " ")
    if "key too small" in reason or "md too weak" in reason:
        return f"argument --ssl-certfile: '{tls.certfile}' is refused by OpenSSL: {reason}"
    return f"argument --ssl-keyfile: '{tls.keyfile}' holds no PEM private key"


class RenewedContext:
    """The context a server listens with, and the newest one that its handshakes use.

    Args:
        tls: the files; they are read now.

    Attributes:
        listening: give this one to the server.

    Raises:
        ConfigError: as `server_context`.
    """

    def __init__(self, tls: TlsConfig) -> None:
        self._tls = tls
        self._seen = self._look()
        self.listening = self._newest = server_context(tls)
        self.listening.sni_callback = self._use_newest

    def _use_newest(
        self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext
    ) -> None:
        """Called at the beginning of every handshake, also without a server name."""
        if self._newest is not self.listening:
            connection.context = self._newest

    def _look(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_stamp, (self._tls.certfile, self._tls.keyfile, self._tls.ca_certs)))

    def look(self) -> bool:
        """Read the files again if one of them changed; True if new handshakes use new files."""
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self._newest = server_context(self._tls)
        except ConfigError as error:
            logger.warning("TLS files changed, the ones from before stay in use: %s", error)
            return False
        logger.info("TLS files changed: new connections use them")
        return True

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL)
            self.look()


def _stamp(path: str | None) -> tuple[int, ...] | None:
    """What changes when a file does; links are followed, so that a swapped link counts."""
    if path is None:
        return None
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_ino, status.st_size, status.st_mtime_ns)
