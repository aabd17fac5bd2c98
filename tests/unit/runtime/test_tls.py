"""TLS contexts from Apache's keys: a handshake in memory for each, and what is refused."""

import ssl

import pytest

from twinlog.runtime.config_format import ConfigValueError
from twinlog.runtime.self_signed import make_certificate
from twinlog.runtime.tls import TlsConfig, TlsMode, client_tls, server_tls, tls_with


@pytest.fixture(scope="module")
def pems(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    paths = {}
    for name in ("server", "client", "stranger"):
        path = directory / f"{name}.pem"
        path.write_bytes(make_certificate(name))
        paths[name] = str(path)
    return paths


def _handshake(server, client):
    """Run both sides over memory; raises what a real connection would end with."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    left = client.wrap_bio(to_client, to_server)
    right = server.wrap_bio(to_server, to_client, server_side=True)
    pending = {left, right}
    for _ in range(20):
        for side in tuple(pending):
            try:
                side.do_handshake()
                pending.discard(side)
            except ssl.SSLWantReadError:
                continue
        if not pending:
            break
    # With TLS 1.3 a refused client certificate shows only when the server reads on.
    for side in (right, left):
        try:
            side.read(1)
        except ssl.SSLWantReadError:
            continue
    return left.version()


def test_without_keys_tls_is_off():
    config = tls_with({})
    assert config.mode is TlsMode.DISABLED
    assert server_tls(config).context is None
    assert client_tls(config) is None


def test_certificate_makes_it_permissive(pems):
    config = tls_with({"tls.server.certPath": pems["server"], "tls.server.keyPath": pems["server"]})
    side = server_tls(config)
    assert side.mode is TlsMode.PERMISSIVE
    client = client_tls(tls_with({"tls.enable": "true"}))
    assert _handshake(side.context, client).startswith("TLSv1")


def test_mode_is_what_the_key_says(pems):
    keys = {"tls.server.certPath": pems["server"]}
    for text, mode in (("enforcing", TlsMode.ENFORCING), ("Disabled", TlsMode.DISABLED)):
        assert server_tls(tls_with({"tls.server.mode": text} | keys)).mode is mode


def test_client_checks_the_server_when_told(pems):
    server = server_tls(tls_with({"tls.server.certPath": pems["server"]})).context
    keys = {"tls.enable": "true", "tls.client.authServer": "true"}
    good = client_tls(tls_with(keys | {"tls.client.trustCertPath": pems["server"]}))
    assert _handshake(server, good)
    bad = client_tls(tls_with(keys | {"tls.client.trustCertPath": pems["stranger"]}))
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        _handshake(server, bad)


def test_server_checks_the_client_when_told(pems):
    server = server_tls(
        tls_with(
            {
                "tls.server.certPath": pems["server"],
                "tls.server.need.client.auth": "require",
                "tls.server.authClient": "true",
                "tls.server.trustCertPath": pems["client"],
            }
        )
    ).context
    known = client_tls(tls_with({"tls.client.certPath": pems["client"]}), use_tls=True)
    assert _handshake(server, known)
    for keys in ({}, {"tls.client.certPath": pems["stranger"]}):
        with pytest.raises(ssl.SSLError):
            _handshake(server, client_tls(tls_with(keys), use_tls=True))


def test_test_mode_makes_its_own_certificate():
    side = server_tls(tls_with({"tls.test.mode.enable": "true"}))
    assert side.mode is TlsMode.PERMISSIVE
    assert _handshake(side.context, client_tls(tls_with({}), use_tls=True))


def test_keys_in_a_file_of_their_own(tmp_path, pems):
    path = tmp_path / "tls.properties"
    path.write_text(f"tls.server.certPath={pems['server']}\ntls.server.mode=permissive\n")
    config = tls_with({"tls.config.file": str(path), "tls.server.mode": "enforcing"})
    assert config.mode is TlsMode.ENFORCING
    assert config.server_cert_path == pems["server"]


@pytest.mark.parametrize(
    ("properties", "key"),
    [
        ({"tls.server.mode": "permissive"}, "tls.server.mode"),
        ({"tls.server.mode": "strict"}, "tls.server.mode"),
        ({"tls.enable": "perhaps"}, "tls.enable"),
        ({"tls.config.file": "/nowhere/tls.properties"}, "tls.config.file"),
        ({"tls.server.certPath": "/nowhere/cert.pem"}, "tls.server.certPath"),
        ({"tls.client.trustCertPath": "/nowhere/ca.pem"}, "tls.client.trustCertPath"),
        (
            {"tls.test.mode.enable": "true", "tls.server.need.client.auth": "require"},
            "tls.server.need.client.auth",
        ),
        (
            {"tls.test.mode.enable": "true", "tls.server.authClient": "true"},
            "tls.server.authClient",
        ),
        ({"tls.server.mode": "disabled # later"}, "tls.server.mode"),
        ({"tls.server.nodes": "x"}, "tls.server.nodes"),
    ],
)
def test_what_cannot_be_is_named(properties, key):
    with pytest.raises(ConfigValueError) as caught:
        tls_with(properties)
    assert caught.value.key == key


def test_files_that_are_no_certificate(tmp_path):
    path = tmp_path / "cert.pem"
    path.write_text("hello")
    config = tls_with({"tls.server.certPath": str(path)})
    with pytest.raises(ConfigValueError, match=r"cert\.pem"):
        server_tls(config)


def test_passwords_stay_out_of_text():
    config = TlsConfig(server_key_password="hunter2", client_key_password="hunter3")
    assert "hunter" not in repr(config)
    assert "hunter" not in f"{config}"
