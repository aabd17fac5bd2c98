"""The Java client over TLS, against servers that refuse plain text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from interop.cluster import SUBJECT
from support.apache import QUICK_JVM, start_apache_broker, start_apache_namesrv
from support.certificates import Certificates, make_certificates
from support.java_driver import Driver
from support.processes import ProcessGroup, process_group, wait_until
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv


def start_enforcing(group: ProcessGroup, directory: Path, certificates: Certificates) -> str:
    """A name server and a broker that speak TLS only, between themselves too; the address."""
    serving, dialling = certificates.server_keys("enforcing"), certificates.dialling_keys()
    if SUBJECT == "apache":
        # Apache takes these keys as options of the JVM.
        keys = {**serving, **dialling, "tls.test.mode.enable": "false"}
        options = [*QUICK_JVM, *(f"-D{key}={value}" for key, value in keys.items())]
        theirs = start_apache_namesrv(directory / "namesrv", java_options=options)
        group.add(theirs)
        address = theirs.address
        group.add(start_apache_broker(directory / "broker", namesrv=address, java_options=options))
        return address
    ours = start_twinlog_namesrv(directory / "namesrv", **serving)
    group.add(ours)
    mine: dict[str, Any] = {**serving, **dialling}
    group.add(start_twinlog_broker(directory / "broker", namesrv=ours.address, **mine))
    return ours.address


def test_the_java_client_sends_and_consumes_over_tls_only(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    with process_group() as group:
        address = start_enforcing(group, tmp_path, certificates)
        options = (
            "-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={certificates.authority}",
        )  # fmt: skip
        encrypted = Driver(tmp_path / "encrypted", options=options)
        send = {"namesrv": address, "topic": "secret", "tls": "true"}
        wait_until(
            lambda: encrypted.run("send", **send, prefix="first", retries=0)["sent"],
            "the broker registered, and a first send over TLS",
        )
        sent = encrypted.run("send", **send, count=10)
        assert [event["status"] for event in sent["sent"]] == ["SEND_OK"] * 10
        consumer = encrypted.start("push", namesrv=address, topic="secret", group="g", tls="true")
        consumer.wait_for("message", 11)
        consumer.stop()
        encrypted.close()

        plain = Driver(tmp_path / "plain")
        refused = plain.run("send", namesrv=address, topic="secret", retries=0)
        assert not refused["sent"]
        assert refused["failed"]
        plain.close()
