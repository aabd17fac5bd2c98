"""How a client encrypts: whom it trusts, who it is, and which name it expects.

Producer("group", name_server=..., tls=TlsSettings(ca="ca.pem", server_name="mq.example"))
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field

from twinlog.client.errors import UsageError

_LOG = logging.getLogger("twinlog.client")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS in terms of files; `tls=True` is the same as `TlsSettings()`."""

    ca: str | None = None
    """A file or folder of certificates to trust; otherwise the system's."""
    certificate: str | None = None
    """This client's certificate, for servers that ask for one."""
    key: str | None = None
    """The private key of `certificate`; may be in the same file."""
    key_password: str | None = field(default=None, repr=False)
    """For a key that is encrypted."""
    server_name: str | None = None
    """The name that the servers' certificates must have; otherwise the address dialled."""
    insecure: bool = False
    """Check nothing: anybody in between can read and change everything. For tests only."""

    def context(self) -> ssl.SSLContext:
        """The context that connections use.

        Raises:
            UsageError: a file that cannot be read, or options that exclude each other.
        """
        if self.insecure and (self.ca or self.server_name):
            raise UsageError(
                "insecure=True checks no certificate: leave it out, or leave out ca and server_name"
            )
        if self.key and not self.certificate:
            raise UsageError(
                "key also needs certificate, the file of the certificate that it belongs to"
            )
        context = self._trust()
        if self.certificate is not None:
            self._load(context)
        return context

    def _trust(self) -> ssl.SSLContext:
        if self.insecure:
            _LOG.warning(
                "TLS is INSECURE: no certificate is checked, anybody in between can read and "
                "change what is sent"
            )
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        else:
            context = _trusting(self.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        assert self.certificate is not None
        try:
            context.load_cert_chain(self.certificate, self.key, self.key_password or "")
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"certificate {self.certificate}: {_why(error)}") from error


def _trusting(ca: str | None) -> ssl.SSLContext:
    if ca is None:
        return ssl.create_default_context()
    import os

    try:
        if os.path.isdir(ca):
            return ssl.create_default_context(capath=ca)
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"ca {ca}: {_why(error)}") from error


def _why(error: OSError) -> str:
    """SSLError is an OSError, too; its text is the one of OpenSSL."""
    if isinstance(error, ssl.SSLError):
        return f"it is not what TLS needs in PEM form: {error}"
    return error.strerror or str(error)
