"""An object store as a process: moto's server, which keeps what it has in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import Process, free_port

ROOT = Path(__file__).resolve().parents[2]
OBJECT_STORE = ROOT / ".cache" / "object-store" / "bin" / "python"  # By tools/services.sh.


@contextmanager
def object_store(directory: Path, bucket: str) -> Iterator[Process]:
    """A store with an empty bucket; its address and keys are in the environment."""
    import pyarrow.fs

    port = free_port()
    given = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    argv = [str(OBJECT_STORE), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = Process("object store", argv, log=directory / "moto.log", cwd=directory)
    try:
        server.wait_for_text("Running on", deadline_s=90)
        make = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
        pyarrow.fs.S3FileSystem(allow_bucket_creation=True, **make).create_dir(bucket)
        yield server
    finally:
        server.kill()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
