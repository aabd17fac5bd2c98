"""The console is guarded: strangers, viewers, other sites, hostile input."""

from __future__ import annotations

import socket
from typing import Any

import httpx
import pytest

from support.console import ConsolePair
from support.processes import wait_until
from twinlog.console.app import operations
from twinlog.console.pages import PAGES

ROWS = list(operations().rows.values())
CHANGES = [row for row in ROWS if row.is_change]
HOSTILE = "<script>alert(1)</script>\"'{{7*7}}"


def fill(path: str) -> str:
    """A path with something in its holes."""
    for name in ("topic", "group", "id", "node", "access_key"):
        path = path.replace("{" + name + "}", "something")
    return path


def example(kind: Any) -> dict[str, Any]:
    """Values of the right kind for every parameter that must be there."""
    values: dict[str, Any] = {
        "topic": "t", "group": "g", "body": "b", "id": "x", "broker": "127.0.0.1:1", "key": "k",
        "value": "v", "access_key": "someaccount", "node": "broker-a-0", "replica": 1, "all": True,
    }  # fmt: skip
    return {name: values[name] for name in kind.__struct_fields__ if name in values}


# A stranger


@pytest.mark.parametrize("path", [*PAGES, "/tail/{topic}", "/messages/{id}/body", "/live/lab"])
def test_a_stranger_sees_no_page(pair: ConsolePair, path: str) -> None:
    answer = httpx.get(pair.url + fill(path))
    assert answer.status_code in (303, 401)
    assert "broker-a" not in answer.text
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/login?next=")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_stranger_gets_no_answer_from_the_api(pair: ConsolePair, row: Any) -> None:
    answer = httpx.request(row.method, f"{pair.url}/api{fill(row.path)}")
    assert answer.status_code == 401
    assert list(answer.json()) == ["error"]


def test_a_wrong_token_is_refused_everywhere(pair: ConsolePair) -> None:
    headers = {"Authorization": f"Bearer {pair.tokens['admin'][:-1]}x"}
    assert httpx.get(f"{pair.url}/api/overview", headers=headers).status_code == 401
    answer = httpx.get(f"{pair.url}/", params={"token": "wrong"})
    assert answer.headers["location"] == "/login?failed=token"
    assert "set-cookie" not in answer.headers


# A viewer


@pytest.mark.parametrize("row", CHANGES, ids=lambda row: row.name)
def test_a_viewer_changes_nothing(pair: ConsolePair, row: Any) -> None:
    values = example(row.params)
    before = len(pair.audit)
    with pair.script("viewer") as http:
        answer = http.request(row.method, f"/api{fill(row.path)}", json=values)
        assert answer.status_code == 403, answer.text
    visitor = pair.browser("viewer")
    answer = visitor.confirmed(row.name, **{k: str(v).lower() for k, v in values.items()})
    assert answer.status_code == 403
    assert f"/do/{row.name}" not in visitor.get("/topics").text

    def refusals() -> list[dict[str, str]]:
        return [line for line in pair.audit[before:] if line["request"] == f"console {row.name}"]

    wait_until(lambda: len(refusals()) == 2, "both refusals are noted")  # A thread writes them.
    assert all(line["outcome"].startswith("refused") for line in refusals())


def test_a_viewer_sees_pages_without_forms(pair: ConsolePair) -> None:
    visitor = pair.browser("viewer")
    for path in ("/", "/topics", "/groups", "/configuration", "/lab", "/rules"):
        page = visitor.get(path)
        assert page.status_code == 200
        assert 'action="/do/' not in page.text, path


# Other sites


def test_a_form_without_the_secret_of_the_session_changes_nothing(pair: ConsolePair) -> None:
    visitor = pair.browser()
    for csrf in ("", "x", pair.browser().csrf):
        data = {"csrf": csrf, "topic": "forged"}
        assert visitor.http.post("/do/topic.create", data=data).status_code == 403
    answer = visitor.http.post("/api/topics", json={"topic": "forged"})
    assert answer.status_code == 403
    assert "forged" not in visitor.get("/topics").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_form_of_another_origin_changes_nothing(
    pair: ConsolePair, headers: dict[str, str]
) -> None:
    visitor = pair.browser()
    data = {"csrf": visitor.csrf, "topic": "forged"}
    answer = visitor.http.post("/do/topic.create", data=data, headers=headers)
    assert answer.status_code == 403
    token = {"X-CSRF-Token": data["csrf"], **headers}
    assert visitor.http.post("/api/topics", json={"topic": "f"}, headers=token).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_name_that_dns_points_here_is_refused(pair: ConsolePair, host: str) -> None:
    headers = {"Authorization": f"Bearer {pair.tokens['admin']}", "Host": host}
    answer = httpx.get(f"{pair.url}/api/overview", headers=headers)
    assert answer.status_code in (400, 421)
    assert "broker-a" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_names_of_loopback_are_its_own(pair: ConsolePair, host: str) -> None:
    headers = {"Authorization": f"Bearer {pair.tokens['admin']}", "Host": f"{host}:8082"}
    assert httpx.get(f"{pair.url}/api/overview", headers=headers).status_code == 200


def test_headers_and_cookies_keep_others_out(pair: ConsolePair) -> None:
    first = httpx.get(pair.url, params={"token": pair.tokens["admin"]})
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    visitor = pair.browser()
    for path in ("/", "/login", "/static/console.js", "/api/overview", "/missing"):
        headers = visitor.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("place", ["//elsewhere.example/x", "///elsewhere.example/", "//", "/%5Cx"])
def test_a_token_in_an_address_leads_nowhere_else(pair: ConsolePair, place: str) -> None:
    """Whoever may look could send an administrator to another server by a link to this one."""
    answer = httpx.get(f"{pair.url}{place}", params={"token": pair.tokens["viewer"]})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/")
    assert not answer.headers["location"].startswith(("//", "/\\"))


@pytest.mark.parametrize("other", ['settings={"open": true}', "a b=c", "lone"])
def test_cookies_of_other_programs_on_this_host_log_nobody_out(
    pair: ConsolePair, other: str
) -> None:
    """A browser sends the cookies of all ports of a host, whatever they look like."""
    [(name, value)] = pair.browser().http.cookies.items()
    headers = {"Cookie": f"{other}; {name}={value}"}
    assert httpx.get(f"{pair.url}/topics", headers=headers).status_code == 200


def test_leaving_ends_the_session(pair: ConsolePair) -> None:
    visitor = pair.browser()
    csrf, cookies = visitor.csrf, dict(visitor.http.cookies)
    assert visitor.http.post("/logout", data={"csrf": csrf}).headers["location"] == "/login"
    answer = httpx.get(f"{pair.url}/topics", cookies=cookies)
    assert answer.headers["location"].startswith("/login")


def test_no_secret_is_on_any_page(pair: ConsolePair) -> None:
    visitor = pair.browser()
    secrets = [*pair.tokens.values(), *dict(visitor.http.cookies).values()]
    for path in ("/", "/overview", "/configuration", "/audit", "/api/audit", "/api/configuration"):
        text = visitor.get(path).text
        assert not [secret for secret in secrets if secret in text], path


# Hostile input


def test_markup_in_messages_keys_tags_and_names_is_text(pair: ConsolePair) -> None:
    visitor = pair.browser()
    assert visitor.post("topic.create", topic="markup").status_code == 303
    sent = visitor.post("topic.send", topic="markup", body=HOSTILE, keys="<b>key", tags="<i>tag")
    assert sent.status_code == 303
    found = visitor.get("/messages", by="key", topic="markup", key="<b>key")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in found.text
    row = pair.script().get("/api/messages", params={"by": "time", "topic": "markup"}).json()
    message = visitor.get(f"/messages/{row['messages'][0]['offset_message_id']}").text
    pages = [found.text, message, visitor.get("/topics", search=HOSTILE).text,
             visitor.get(f"/groups/{HOSTILE}").text, visitor.get(f"/tail/{HOSTILE}").text,
             visitor.get("/login", failed=HOSTILE, next=HOSTILE).text,
             visitor.get("/configuration", search=HOSTILE).text]  # fmt: skip
    for page in pages:
        assert "<script>alert" not in page
        assert "<b>key" not in page
        assert page.count("<script") == page.count('<script src="/static/console.js" defer>')


def test_a_downloaded_body_is_stored_and_not_opened(pair: ConsolePair) -> None:
    with pair.script() as http:
        http.post("/api/topics", json={"topic": "downloads"})
        body = "<html><script>alert(1)</script>"
        sent = http.post("/api/topics/downloads/messages", json={"body": body, "keys": "page"})
        assert sent.json()["details"][0]["status"] == "SEND_OK"
        found = http.get("/api/messages?by=key&topic=downloads&key=page").json()["messages"]
        answer = http.get(f"/messages/{found[0]['offset_message_id']}/body")
        assert answer.text == body
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment;")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../server.py",
        "/static/%2e%2e/server.py",
        "/static/..%2fserver.py",
        "/static/....//server.py",
        "/static/%2fetc/passwd",
        "/static//etc/passwd",
        "/static/console.css%00.html",
        "/static/",
    ],
)
def test_nothing_but_static_files_is_served(pair: ConsolePair, path: str) -> None:
    host, port = pair.address("console").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ", 2)[1] in (b"303", b"400", b"404"), answer[:200]
    assert b"uvicorn" not in answer
    assert b"root:" not in answer


def test_huge_requests_are_refused_and_the_console_lives(pair: ConsolePair) -> None:
    visitor = pair.browser()
    big = "x" * (9 * 1024 * 1024)
    answer = visitor.post("topic.send", topic="t", body=big)
    assert answer.status_code == 413
    with pair.script() as http:
        assert http.post("/api/topics", content=big).status_code == 413
        assert http.post("/api/topics", content=b"[" * 100_000).status_code == 400
        assert http.post("/api/topics", content=b"[1]").status_code == 400
        assert http.post("/api/topics", content=b"\xff").status_code == 400
    many = "&".join(f"a{n}=1" for n in range(5_000))
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert visitor.http.post("/do/topic.create", content=many, headers=kind).status_code == 400
    assert visitor.get("/overview").status_code == 200


@pytest.mark.parametrize(
    "query",
    [
        "by=offset&topic=t&broker=b&queue=-1&offset=0",
        "by=offset&topic=t&broker=b&queue=99999999999999999999&offset=0",
        "by=time&topic=t&minutes=x",
        "by=nothing&topic=t",
        "by=id&id=" + "F" * 5000,
        "by=key",
    ],
)
def test_bad_parameters_are_an_answer(pair: ConsolePair, query: str) -> None:
    with pair.script() as http:
        answer = http.get(f"/api/messages?{query}")
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]


def test_an_id_with_a_foreign_address_is_not_asked_there(pair: ConsolePair) -> None:
    """The address in a message id is whatever somebody types: nobody there is called."""
    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen(1)
        trap.settimeout(0.3)
        port = trap.getsockname()[1]
        message_id = "7F000001" + f"{port:08X}" + "0" * 16
        with pair.script() as http:
            assert http.get(f"/api/messages/{message_id}").status_code == 404
            answer = http.get("/api/configuration", params={"broker": f"127.0.0.1:{port}"})
            assert answer.status_code == 404
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.parametrize("path", ["/loginx", "/login/x", "/static/none.js", "/static/"])
def test_a_stranger_learns_nothing_from_what_there_is_not(pair: ConsolePair, path: str) -> None:
    answer = pair.stranger().get(path)
    assert answer.status_code in (303, 404)
    assert pair.namesrv not in answer.text
    assert "<nav" not in answer.text


def test_a_stranger_chooses_the_language_and_returns_to_the_page(pair: ConsolePair) -> None:
    visitor = pair.stranger()
    sent = visitor.get("/topics", search="a b")
    assert sent.headers["location"] == "/login?next=%2Ftopics%3Fsearch%3Da%2Bb"
    visitor.get("/prefer", lang="zh", next="/login")
    page = visitor.http.get(sent.headers["location"])
    assert "登录" in page.text
    assert 'value="/topics?search=a+b"' in page.text
    entered = visitor.http.post(
        "/login", data={"token": pair.tokens["viewer"], "next": "/topics?search=a+b"}
    )
    assert entered.headers["location"] == "/topics?search=a+b"


@pytest.mark.parametrize("body", ['"\\ud800"', '{"\\udfff": 1}', "[" * 3000, "1" * 5000, "NaN"])
@pytest.mark.parametrize("view", ["text", "json", "hex"])
def test_any_body_can_be_shown(pair: ConsolePair, body: str, view: str) -> None:
    """Half of a pair of surrogates is JSON, and no text."""
    http = pair.script()
    sent = http.post("/api/topics/bodies/messages", json={"body": body}).json()
    message_id = sent["details"][0]["message_id"]
    for path in ("/messages/", "/api/messages/"):
        answer = http.get(path + message_id, params={"topic": "bodies", "view": view})
        assert answer.status_code == 200, answer.text


def test_guessing_is_slowed_down(pair: ConsolePair) -> None:
    """Last in this module: the address of the tests is shut out for a minute afterwards."""
    visitor = pair.stranger()
    codes = [
        visitor.http.post("/login", data={"access_key": "root", "secret_key": f"{n}"}).status_code
        for n in range(12)
    ]
    assert set(codes[:8]) == {401}
    assert codes[-1] == 429
