"""The --ssl-* flags."""

from collections.abc import Iterator

from ortloom.commands.arguments import Arguments
from ortloom.config import TlsConfig
from ortloom.errors import ConfigError


def tls_contradictions(args: Arguments) -> Iterator[str]:
    """What the --ssl-* flags lack beside each other; silence would be plain HTTP, or a check of
    client certificates that nobody can pass."""
    key, certificate = args.get("--ssl-keyfile"), args.get("--ssl-certfile")
    if (key is None) != (certificate is None):
        given, missing = "--ssl-keyfile", "--ssl-certfile"
        if key is None:
            given, missing = missing, given
        yield f"{given} needs {missing}"
    if certificate is None:
        for name in ("--ssl-ca-certs", "--ssl-cert-reqs", "--ssl-ciphers", "--enable-ssl-refresh"):
            if args.get(name):
                yield f"{name} needs --ssl-certfile and --ssl-keyfile"
    if args.get("--ssl-cert-reqs") and args.get("--ssl-ca-certs") is None:
        yield "--ssl-cert-reqs needs --ssl-ca-certs, the authorities that sign client certificates"


def tls_config(args: Arguments, notices: list[str]) -> TlsConfig | None:
    """What the flags ask for; None = plain HTTP.

    Args:
        args: the parsed arguments.
        notices: lines for the user are added.

    Raises:
        ConfigError: a value is out of range.
    """
    certificate, key = args.get("--ssl-certfile"), args.get("--ssl-keyfile")
    if certificate is None or key is None:
        return None
    level = args.get("--ssl-cert-reqs") or 0
    if level not in (0, 1, 2):
        raise ConfigError(
            "argument --ssl-cert-reqs: must be 0 (client certificates are not asked for), "
            f"1 (checked where one is sent) or 2 (needed), got {level}"
        )
    authorities = args.get("--ssl-ca-certs")
    if authorities is not None and level == 0:
        notices.append("--ssl-ca-certs: client certificates are not asked for: --ssl-cert-reqs 0")
    ciphers = args.get("--ssl-ciphers")
    return TlsConfig(
        certfile=str(certificate),
        keyfile=str(key),
        ca_certs=None if authorities is None else str(authorities),
        cert_reqs=level,
        ciphers=None if ciphers is None else str(ciphers),
        refresh=bool(args.get("--enable-ssl-refresh")),
    )
