"""An object store as a process: moto's server, with a journal, so that it can be killed.

moto keeps its objects in memory. What changes them is written down before it is answered, and done
again before a restarted server listens: as with a real store, what was answered is there after
SIGKILL, and what was not may be.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes import Process, free_port

ROOT = Path(__file__).resolve().parents[2]
OBJECT_STORE = ROOT / ".cache" / "object-store" / "bin" / "python"  # By tools/object_store.sh.
READY_DEADLINE_S = 240

SERVER = """
import base64, io, json, re, sys, threading
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.test import Client

port, journal = int(sys.argv[1]), sys.argv[2]
inner = DomainDispatcherApplication(create_backend_app)
lock = threading.Lock()

def upload_in(text):
    found = re.search("<UploadId>(.*?)</UploadId>", text)
    return found[1] if found else ""

with open(journal, "a+b") as file:
    file.seek(0)
    lines = file.read().split(b"\\n")
    file.truncate(sum(len(line) + 1 for line in lines[:-1]))  # the last one was cut by a kill
uploads = {}  # they get other numbers when they are done again
for line in lines[:-1]:
    method, path, query, headers, body, upload = json.loads(line)
    for old, new in uploads.items():
        query = query.replace(old, new)
    data = base64.b64decode(body)
    given = {"method": method, "query_string": query, "headers": headers, "data": data}
    text = Client(inner).open(path, **given).get_data(as_text=True)
    if upload and "uploads" in query:
        uploads[upload] = upload_in(text)

def outer(environ, start):
    if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
        return inner(environ, start)
    is_chunked = environ.pop("HTTP_TRANSFER_ENCODING", "") == "chunked"
    size = -1 if is_chunked else int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(size)
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
    given = {name[5:]: value for name, value in environ.items() if name.startswith("HTTP_")}
    given["CONTENT_TYPE"] = environ.get("CONTENT_TYPE", "")
    headers = [(name.replace("_", "-"), value) for name, value in given.items()]
    row = [environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"], headers]
    answers = []
    with lock:
        parts = list(inner(environ, lambda *answer: answers.append(answer)))
        row += [base64.b64encode(body).decode(), upload_in(b"".join(parts).decode())]
        with open(journal, "ab") as file:
            file.write(json.dumps(row).encode() + b"\\n")
    start(*answers[-1])
    return parts

run_simple("127.0.0.1", port, outer, threaded=True)
"""


class ObjectStore(Process):
    """A store at a port that stays the same."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory, self.port = directory, port
        argv = [str(OBJECT_STORE), "-c", SERVER, str(port), str(directory / "journal")]
        super().__init__("object store", argv, log=directory / "moto.log", cwd=directory)
        self.wait_for_text("Running on", deadline_s=READY_DEADLINE_S)

    def restart(self) -> ObjectStore:
        return ObjectStore(self.directory, self.port)


def store_settings(port: int) -> dict[str, str]:
    """The environment by which clients find the store and are let in."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip


@contextmanager
def object_store(directory: Path, bucket: str) -> Iterator[ObjectStore]:
    """A store with an empty bucket; its address and keys are in the environment."""
    import pyarrow.fs

    port = free_port()
    given = store_settings(port)
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    server = ObjectStore(directory, port)
    try:
        make = {"endpoint_override": f"127.0.0.1:{port}", "scheme": "http"}
        pyarrow.fs.S3FileSystem(allow_bucket_creation=True, **make).create_dir(bucket)
        yield server
    finally:
        server.kill()
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
