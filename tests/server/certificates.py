"""Certificates for tests, made as they run."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)


def pem_key(key, passphrase=None):
    cipher = serialization.NoEncryption()
    if passphrase is not None:
        cipher = serialization.BestAvailableEncryption(passphrase)
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, cipher)


class Authority:
    """Signs certificates; `file` is its own one."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        basic = x509.BasicConstraints(ca=True, path_length=0)
        made = self._builder(self.name, self.key).add_extension(basic, critical=True)
        usage = x509.KeyUsage(*[False] * 5, True, True, *[False] * 2)
        made = made.add_extension(usage, critical=True)
        made = made.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False
        )
        self._write(self.file, made.sign(self.key, hashes.SHA256()))

    def _builder(self, subject, key):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )

    @staticmethod
    def _write(path, certificate):
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def sign(self, name: str, *, client: bool = False) -> tuple[str, str]:
        """Paths of a new certificate and its key; a server's is for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        kind = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        made = (
            self._builder(subject, key)
            .add_extension(x509.ExtendedKeyUsage([kind]), critical=False)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        certificate, keyfile = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        self._write(certificate, made.sign(self.key, hashes.SHA256()))
        keyfile.write_bytes(pem_key(key))
        return str(certificate), str(keyfile)
