"""The Java client over TLS, against servers that refuse plain text."""

from __future__ import annotations

from pathlib import Path

import pytest

from interop.cluster import SUBJECT
from support.certificates import make_certificates
from support.java_driver import Driver
from support.processes import process_group
from support.twinlog_servers import start_twinlog_broker, start_twinlog_namesrv

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(SUBJECT == "apache", reason="Apache takes these keys as JVM options"),
]


def test_the_java_client_sends_and_consumes_over_tls_only(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    keys = certificates.server_keys("enforcing")
    with process_group() as group:
        namesrv = start_twinlog_namesrv(tmp_path / "namesrv", **keys)
        group.add(namesrv)
        broker = start_twinlog_broker(
            tmp_path / "broker", namesrv=namesrv.address, **keys, **certificates.dialling_keys()
        )
        group.add(broker)
        namesrv.wait_for_text(f"address={broker.address}")

        options = (
            "-Dtls.enable=true", "-Dtls.test.mode.enable=false", "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={certificates.authority}",
        )  # fmt: skip
        encrypted = Driver(tmp_path / "encrypted", options=options)
        sent = encrypted.run("send", namesrv=namesrv.address, topic="secret", count=10, tls="true")
        assert [event["status"] for event in sent["sent"]] == ["SEND_OK"] * 10
        consumer = encrypted.start(
            "push", namesrv=namesrv.address, topic="secret", group="g", tls="true"
        )
        consumer.wait_for("message", 10)
        consumer.stop()
        encrypted.close()

        plain = Driver(tmp_path / "plain")
        refused = plain.run("send", namesrv=namesrv.address, topic="secret", retries=0)
        assert not refused["sent"]
        assert refused["failed"]
        plain.close()
