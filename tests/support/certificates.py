"""Certificates for tests: an authority, and a server's certificate for 127.0.0.1 signed by it."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    authority: Path
    certificate: Path
    key: Path

    def server_keys(self, mode: str) -> dict[str, object]:
        """What stands in the file of a server that offers TLS."""
        return {
            "tls.server.mode": mode,
            "tls.server.certPath": self.certificate,
            "tls.server.keyPath": self.key,
        }

    def dialling_keys(self) -> dict[str, object]:
        """What stands in the file of a broker that dials servers with TLS and checks them."""
        return {
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": self.authority,
        }


def make_certificates(directory: Path, authority: str = "test authority") -> Certificates:
    directory.mkdir(parents=True, exist_ok=True)
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = _name(authority)
    root = _builder(authority_name, authority_name, authority_key).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = _builder(_name("127.0.0.1"), authority_name, key).add_extension(
        x509.SubjectAlternativeName([address]), critical=False
    )
    made = Certificates(directory / "ca.pem", directory / "server.pem", directory / "server.key")
    made.authority.write_bytes(_signed(root, authority_key))
    made.certificate.write_bytes(_signed(server, authority_key))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return made


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
    )


def _signed(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
