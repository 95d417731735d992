"""Notifications of a real daemon: to a real HTTP receiver, a real mail server and a real command."""

import json
import queue
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult, Envelope, LoginPassword

from tests.acceptance.running import PATIENCE_S, Home, one_sentence, oneshot, settings, table, timer

ON = settings(timezone="UTC", timers=True)
SOON = {"on_startup_sec": 0.01, "retry_intervals_sec": []}
FAILS = oneshot("job", "echo no space left; exit 3") + timer("job", "job", **SOON)


class Receiver:
    """A web server that keeps what is posted to it."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        """The codes that it answers with, then 200."""
        self.headers: list[dict[str, str]] = []
        posted = self._posted = queue.Queue[bytes]()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = receiver.answers.pop(0) if receiver.answers else 200
                receiver.headers.append(dict(self.headers))
                self.send_response(code)
                self.end_headers()
                if code == 200:
                    posted.put(body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}/s3cret?key=s3cret"
        self._thread = Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def next(self) -> bytes:
        return self._posted.get(timeout=PATIENCE_S)

    def next_json(self) -> dict[str, Any]:
        found = json.loads(self.next())
        assert isinstance(found, dict)
        return found

    def is_empty(self) -> bool:
        return self._posted.empty()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def notify(**options: Any) -> str:
    return table("notify", {"id": "ops", **options})


def test_failure_and_recovery(tmp_path: Path, receiver: Receiver) -> None:
    """A job that fails is told of once, with its last lines, and again when it is well."""
    job = "test -e mended || { echo no space left >&2; exit 3; }"
    home = Home(
        tmp_path, ON + notify(webhook=receiver.url) + oneshot("job", job) + timer("job", "job", **SOON)
    )
    with home.running() as daemon:
        seen = receiver.next_json()
        assert {key: seen[key] for key in ("notify", "event", "jobs", "text", "output", "host")} == {
            "notify": "ops",
            "event": "failure",
            "jobs": ["job"],
            "text": "service job failed: exited with code 3; it has never succeeded",
            "output": "no space left\n",
            "host": socket.gethostname(),
        }
        assert home.asked("logs", "--run", str(seen["run"]))["output"] == "no space left\n"
        home.duly("trigger", "job", "--wait")
        (tmp_path / "mended").touch()
        home.duly("trigger", "job", "--wait")
        seen = receiver.next_json()
        assert seen["event"] == "recovery"
        assert seen["text"].startswith("service job is well again, after ")
        daemon.log.until(r" NotificationSent .*about=recovery")
        said = "\n".join(daemon.ended())
    assert receiver.is_empty()
    assert "s3cret" not in said
    assert home.asked("status", code=0)["health"]["ok"] is False  # it is down


def test_a_receiver_that_fails(tmp_path: Path, receiver: Receiver) -> None:
    """What cannot be delivered is a fault in the status, is tried again and survives kill -9."""
    receiver.answers = [503] * 3
    home = Home(tmp_path, ON + notify(webhook=receiver.url) + FAILS)
    with home.running() as daemon:
        daemon.log.until(r" NotificationFailed notify=ops reason=.*it answered with 503")
        [fault] = [each for each in home.asked("status")["health"]["reasons"] if "notify" in each]
        assert fault == f"notify ops cannot deliver: {receiver.host}: it answered with 503"
        daemon.send(signal.SIGKILL)
        daemon.process.wait()
    (tmp_path / "duly.toml").write_text((tmp_path / "duly.toml").read_text().replace("exit 3", "exit 0"))
    with home.running() as daemon:
        assert receiver.next_json()["event"] == "failure"
        assert receiver.next_json()["event"] == "recovery"
        daemon.ended()
    assert receiver.is_empty()


def test_a_receiver_that_hangs(tmp_path: Path, receiver: Receiver) -> None:
    """A receiver that never answers keeps no other waiting, no job from running and no daemon from ending."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hangs = table("notify", {"id": "deaf", "webhook": f"http://127.0.0.1:{deaf.getsockname()[1]}/"})
        tick = oneshot("tick", "echo tick") + timer("tick", "tick", on_startup_sec=1, on_unit_active_sec=0.1)
        home = Home(tmp_path, ON + hangs + notify(webhook=receiver.url) + FAILS + tick)
        with home.running() as daemon:
            connection, _ = deaf.accept()  # it is being told, and waits for an answer
            with connection:
                seen = len(daemon.out.lines)
                assert receiver.next_json()["event"] == "failure"
                daemon.out.until(r"tick$", count=5, after=seen)
                daemon.ended()


def test_a_restart_repeats_nothing(tmp_path: Path, receiver: Receiver) -> None:
    """An outage that was told of is not told of again by the next daemon, while it goes on."""
    other = notify(webhook=receiver.url, jobs=["job"]) + table(
        "notify", {"id": "late", "webhook": receiver.url, "jobs": ["late"]}
    )
    late = oneshot("late", "exit 4") + timer("late", "late", **SOON)
    home = Home(tmp_path, ON + other + FAILS)
    with home.running() as daemon:
        assert receiver.next_json()["jobs"] == ["job"]
        daemon.log.until(r" NotificationSent ")
        daemon.ended()
    home.write(ON + other + FAILS + late)
    with home.running() as daemon:
        daemon.log.until(r" ServiceRunEnded service=job ")
        assert receiver.next_json()["jobs"] == ["late"]
        daemon.log.until(r" NotificationSent notify=late")
        daemon.ended()
    assert receiver.is_empty()


def test_many_that_fail_together(tmp_path: Path, receiver: Receiver) -> None:
    """Many jobs that fail together are one message; a filter leaves others out."""
    jobs = "".join(
        oneshot(name, "exit 3") + timer(f"t-{name}", name, **SOON)
        for name in (*(f"etl-{number}" for number in range(8)), "other")
    )
    home = Home(tmp_path, ON + notify(webhook=receiver.url, jobs=["etl-*"]) + jobs)
    with home.running() as daemon:
        seen = receiver.next_json()
        assert seen["event"] == "digest"
        assert sorted(seen["jobs"]) == [f"etl-{number}" for number in range(8)]
        assert seen["text"].startswith("8 messages about 8 jobs:\n- service etl-")
        daemon.ended()
    assert receiver.is_empty()


def test_several_in_a_row_and_silence(tmp_path: Path, receiver: Receiver) -> None:
    """With failures = 3 the third in a row is told of; silence once no run has ended well for so long."""
    retried = {"on_startup_sec": 0.01, "retry_intervals_sec": [0.1, 0.1, 0.1]}
    home = Home(
        tmp_path,
        ON
        + notify(webhook=receiver.url, failures=3)
        + oneshot("job", "exit 3")
        + timer("job", "job", **retried)
        + table("notify", {"id": "quiet", "webhook": receiver.url, "on": ["recovery"], "silence": "1s"}),
    )
    with home.running() as daemon:
        assert " failed 3 of 3 since " in receiver.next_json()["text"]
        daemon.ended()
    with home.running() as daemon:
        seen = receiver.next_json()
        assert (seen["notify"], seen["event"]) == ("quiet", "silence")
        assert seen["text"].startswith("service job has not succeeded for ")
        daemon.ended()


def test_missed(tmp_path: Path, receiver: Receiver) -> None:
    """A slot that is missed because the run before still goes on is told of."""
    home = Home(
        tmp_path,
        ON
        + notify(webhook=receiver.url, on=["missed"])
        + oneshot("job", "exec sleep 1000")
        + timer("first", "job", **SOON)
        + timer("second", "job", on_startup_sec=0.5),
    )
    with home.running() as daemon:
        seen = receiver.next_json()
        assert (seen["event"], seen["jobs"]) == ("missed", ["job"])
        assert seen["text"] == "timer second missed a slot: its target was still active, or its lock held"
        home.duly("stop", "job")
        daemon.ended()


@pytest.mark.parametrize("form", ["slack", "ntfy"])
def test_forms(tmp_path: Path, receiver: Receiver, form: str) -> None:
    """Slack gets its JSON, ntfy a text with a title."""
    home = Home(tmp_path, ON + notify(webhook=receiver.url, format=form) + FAILS)
    with home.running() as daemon:
        body = receiver.next().decode()
        daemon.ended()
    text = "service job failed: exited with code 3; it has never succeeded"
    if form == "slack":
        assert json.loads(body) == {"text": f"{socket.gethostname()}: {text}\n```\nno space left\n\n```"}
    else:
        assert body == f"{text}\n\nno space left\n"
        assert receiver.headers[0]["Title"] == f"{socket.gethostname()}: {text}"
        assert receiver.headers[0]["Priority"] == "high"


def test_command(tmp_path: Path) -> None:
    """A command gets the message as JSON; one that fails is tried again, and its last word is the fault."""
    shell = "test -e tried || { touch tried; echo bad >&2; exit 7; }; cat > told; echo $DULY_EVENT > event"
    home = Home(tmp_path, ON + notify(command=["/bin/sh", "-c", shell]) + FAILS)
    with home.running() as daemon:
        daemon.log.until(r" NotificationFailed notify=ops reason=/bin/sh: exited with code 7: bad")
        daemon.log.until(r" NotificationSent notify=ops about=failure")
        daemon.ended()
    assert json.loads((tmp_path / "told").read_text())["jobs"] == ["job"]
    assert (tmp_path / "event").read_text() == "failure\n"


def test_test(tmp_path: Path, receiver: Receiver) -> None:
    """`duly notify test` sends a message without a daemon, and says what keeps it from being delivered."""
    home = Home(tmp_path, notify(webhook=receiver.url) + oneshot("job", "true"))
    sent = home.duly("notify", "test", "ops")
    assert (sent.returncode, sent.stdout) == (0, "Sent a test message to ops.\n")
    assert receiver.next_json()["event"] == "test"
    receiver.answers = [403]
    refused = home.duly("notify", "test", "ops")
    assert refused.returncode == 1
    assert one_sentence(refused) == f"not delivered: {receiver.host}: it answered with 403"
    assert home.asked("notify", "test", "opps", code=3)["error"]["code"] == "not_found"


# --- e-mail ---


class Mailbox:
    """What a mail server does with what it gets."""

    def __init__(self) -> None:
        self.got: queue.Queue[tuple[Envelope, bool]] = queue.Queue()

    async def handle_DATA(self, _server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802 (its name)
        self.got.put((envelope, session.ssl is not None))
        return "250 OK"


def certificate(folder: Path) -> ssl.SSLContext:
    """The certificate of a server called localhost, which nobody has signed but itself."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
        f" -addext subjectAltName=DNS:localhost -keyout {key} -out {cert}",
        shell=True,
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


def free_port() -> int:
    with socket.create_server(("localhost", 0)) as made:
        return int(made.getsockname()[1])


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_mail(tmp_path: Path, scheme: str) -> None:
    """A mail goes over TLS to a server that asks for a password, and an untrusted server gets neither."""
    context, box = certificate(tmp_path), Mailbox()
    passwords = []

    def authenticate(_server: Any, _session: Any, _envelope: Any, _kind: str, given: Any) -> AuthResult:
        assert isinstance(given, LoginPassword)
        passwords.append((given.login, given.password))
        return AuthResult(success=given.password == b"p@ss")

    tls = (
        {"ssl_context": context} if scheme == "smtps" else {"tls_context": context, "require_starttls": True}
    )
    server = Controller(
        box,
        hostname="localhost",
        port=free_port(),
        authenticator=authenticate,
        auth_required=scheme == "smtp",  # else aiosmtpd warns, since it does not see the TLS around it
        auth_require_tls=scheme == "smtp",
        **tls,
    )
    server.start()
    url = f"{scheme}://duly:p%40ss@localhost:{server.port}"
    home = Home(tmp_path, ON + notify(email="ops@example.org", smtp=url, sender="duly@example.org") + FAILS)
    try:
        with home.running() as daemon:
            daemon.log.until(r" NotificationFailed notify=ops reason=localhost: .*CERTIFICATE")
            daemon.ended()
        assert box.got.empty()
        assert passwords == []
        with home.running(env={"SSL_CERT_FILE": str(tmp_path / "cert.pem")}) as daemon:
            envelope, is_safe = box.got.get(timeout=PATIENCE_S)
            daemon.log.until(r" NotificationSent notify=ops about=failure")
            said = "\n".join(daemon.ended())
    finally:
        server.stop()
    assert is_safe or scheme == "smtps"  # that server hears nothing that is not encrypted
    assert passwords == [(b"duly", b"p@ss")]
    assert "p@ss" not in said
    assert "p%40ss" not in said
    assert (envelope.mail_from, envelope.rcpt_tos) == ("duly@example.org", ["ops@example.org"])
    mail = message_from_bytes(bytes(envelope.original_content or b""), policy=default)
    said = "service job failed: exited with code 3; it has never succeeded"
    assert mail["Subject"].strip() == f"[duly] {socket.gethostname()}: {said}"
    assert isinstance(mail, EmailMessage)
    assert "no space left" in mail.get_content()
