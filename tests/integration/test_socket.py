"""Client and server over a real socket, with a small daemon behind it."""

import asyncio
import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from duly.daemon.client import Client
from duly.daemon.operations import OPERATIONS
from duly.daemon.protocol import (
    LONGEST_REQUEST,
    OperationError,
    PathTooLongError,
    UnreachableError,
    answer_from,
    error_line,
)
from duly.daemon.server import Server, SocketError, _peer
from duly.processes.output import Tail
from duly.store.history import RunRow
from tests.worlds.daemons import FakeDaemon, listening, us


@pytest.fixture
def daemon() -> FakeDaemon:
    """A daemon that nobody can talk to yet."""
    return FakeDaemon()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where its socket goes."""
    return tmp_path / "duly.sock"


@pytest.fixture
def client(path: Path, daemon: FakeDaemon) -> Iterator[Client]:
    """A client of the daemon, which listens."""
    with listening(path, daemon):
        yield Client(str(path), patience_s=60)


def raw(path: Path, sent: bytes, *, is_over: bool = True) -> list[dict[str, Any]]:
    """What the server answers to bytes, until it closes."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(str(path))
        connection.sendall(sent)
        if is_over:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    return [json.loads(line) for line in received.splitlines()]


# --- operations ---


def test_reading(client: Client) -> None:
    """Every read operation answers with its shape."""
    assert client.ask("status")["version"] == "9.9"
    assert [timer["id"] for timer in client.ask("timers")["timers"]] == ["backup", "poll"]
    assert [service["id"] for service in client.ask("services")["services"]] == ["web", "backup", "mail"]
    assert client.ask("definitions")["timezone"] == "UTC"


def test_history(client: Client) -> None:
    """History can be of all, of a service with its timer's misses, of a timer, and be paged."""
    assert [run["id"] for run in client.ask("history")["runs"]] == [4, 2, 1]
    assert [miss["timer"] for miss in client.ask("history")["misses"]] == ["poll"]
    seen = client.ask("history", id="backup", limit=1)
    assert ([run["id"] for run in seen["runs"]], seen["misses"], seen["more"]) == ([4], [], True)
    assert [run["id"] for run in client.ask("history", id="backup", before=4)["runs"]] == [1]
    seen = client.ask("history", id="poll")
    assert (seen["runs"], [miss["reason"] for miss in seen["misses"]]) == ([], ["overlap"])
    assert client.ask("history", service="web")["misses"] == []


@pytest.mark.parametrize(
    ("op", "params", "code", "said"),
    [
        ("history", {"id": "bakup"}, "not_found", "did you mean backup?"),
        ("logs", {"id": "nobody"}, "not_found", "there is no service or timer nobody"),
        ("logs", {"id": "mail"}, "failed", "mail has not run yet"),
        ("logs", {"run": 99}, "not_found", "there is no run 99"),
        ("logs", {"run": 1, "id": "web"}, "not_found", "there is no run 1 of web"),
        ("logs", {}, "bad_request", "whose output?"),
        ("start", {"id": "wep"}, "not_found", "did you mean web?"),
        ("start", {"id": "web"}, "failed", "web is active already"),
        ("stop", {"id": "backupp"}, "not_found", "there is no service backupp"),
        ("trigger", {"id": "bad"}, "invalid_configuration", 'timer bad is invalid: target "nope"'),
        ("enable", {"id": "web"}, "not_found", "there is no timer web"),
        ("logs", {"run": 2**63}, "bad_request", "Expected `int` <= 9223372036854775807"),
        ("history", {"before": 10**20}, "bad_request", "Expected `int`"),
        ("start", {}, "bad_request", "missing required field `id`"),
        ("start", {"id": 7}, "bad_request", "Expected `str`, got `int`"),
        ("start", {"id": "web", "x": 1}, "bad_request", "unknown field `x`"),
        ("dance", {}, "bad_request", "there is no operation 'dance'"),
    ],
)
def test_refusals(client: Client, op: str, params: dict[str, Any], code: str, said: str) -> None:
    """What cannot be done is refused with a code for machines and a sentence for people."""
    with pytest.raises(OperationError) as caught:
        client.ask(op, **params)
    assert caught.value.code == code
    assert said in caught.value.message


def test_acting(client: Client, daemon: FakeDaemon) -> None:
    """Every action does what it says once, and tells who did it."""
    started = {"done": "started", "id": "backup", "run": 41}
    assert client.ask("start", id="backup") == started
    assert client.ask("trigger", id="backup")["run"] == 42
    client.ask("stop", id="web")
    client.ask("enable", id="poll")
    client.ask("disable", id="poll")
    assert client.ask("reload")["added"] == ["timer new"]
    client.ask("shut_down")
    assert [did for did in daemon.did if did[0] != "noted"] == [
        ("start", "backup"),
        ("trigger", "backup"),
        ("stop", "web"),
        ("switch", "poll", True),
        ("switch", "poll", False),
        ("reload",),
        ("shut down",),
    ]
    noted = [did[1] for did in daemon.did if did[0] == "noted"]
    assert noted == ["start", "trigger", "stop", "enable", "disable", "reload", "shut down"]


def test_closed_switch(client: Client, daemon: FakeDaemon) -> None:
    """Behind a closed switch nothing of timers is shown or done, until it is opened."""
    client.ask("gate", on=False)
    assert client.ask("timers")["status"] == "disabled"
    assert client.ask("history")["misses"] == []
    assert client.ask("status")["timers"] == "disabled"
    for op in ("trigger", "enable", "disable"):
        with pytest.raises(OperationError) as caught:
            client.ask(op, id="backup")
        assert caught.value.code == "disabled"
    assert not [did for did in daemon.did if did[0] in {"trigger", "switch"}]
    client.ask("gate", on=True)
    assert client.ask("timers")["status"] == "enabled"


def test_operation_that_fails_unexpectedly(
    path: Path, daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A mistake of the daemon's own is answered, told to the operator, and harms nobody else."""

    def broken() -> Any:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(daemon, "services", broken)
    with listening(path, daemon):
        client = Client(str(path), patience_s=60)
        with pytest.raises(OperationError, match="ZeroDivisionError: oh"):
            client.ask("services")
        assert client.ask("timers")["status"] == "enabled"
    assert "operation services failed" in capfd.readouterr().err


def test_table_is_whole() -> None:
    """Every operation says what it takes and whether it only reads."""
    reads = {name for name, operation in OPERATIONS.items() if operation.is_read}
    assert reads == {
        *("status", "timers", "services", "definitions", "history", "run", "misses", "why", "next"),
        *("logs", "outputs"),
    }
    assert all(operation.summary.endswith(".") for operation in OPERATIONS.values())


# --- output ---


def test_logs(client: Client) -> None:
    """The output of the latest run, or of one, whole or its last lines."""
    seen = client.ask("logs", run=1)
    assert (seen["output"], seen["lost_bytes"], seen["run"]["id"]) == ("one\ntwo\nthree\n", 10, 1)
    assert client.ask("logs", run=1, lines=1)["output"] == "three\n"
    assert client.ask("logs", id="backup")["run"]["id"] == 4


def test_following(path: Path, daemon: FakeDaemon) -> None:
    """A follower gets what there is, what comes, and the end, and no byte twice or broken."""
    tail = Tail(1000)
    tail.write(b"before ")
    daemon.outputs[2] = tail
    daemon.endings[2] = asyncio.Event()
    with listening(path, daemon) as loop:
        stream = Client(str(path), patience_s=60).stream("logs", id="web", follow=True)
        first = next(stream)
        assert (first["output"], first["run"]["running"]) == ("before ", True)
        loop.call_soon_threadsafe(tail.write, "ä".encode()[:1])
        loop.call_soon_threadsafe(tail.write, "ä".encode()[1:] + b" and more\n")
        seen = ""
        while not seen.endswith("more\n"):
            seen += next(stream)["text"]
        assert seen == "ä and more\n"
        ended = RunRow(
            id=2, service="web", reason="boot", started_us=us("11:00"), ended_us=us("11:30"), result="success"
        )
        asyncio.run_coroutine_threadsafe(daemon.history.put([ended], []), loop).result(60)
        loop.call_soon_threadsafe(daemon.endings[2].set)
        assert next(stream)["run"]["result"] == "success"
        assert list(stream) == [None]
    assert tail._followers == {}


def test_follower_that_vanishes(path: Path, daemon: FakeDaemon) -> None:
    """A follower who goes away is no longer told anything, though the run says nothing for ever."""
    left = threading.Event()

    class Watched(Tail):
        def watch(self, follower: Callable[[bytes], object]) -> Callable[[], None]:
            unwatch = super().watch(follower)

            def end() -> None:
                unwatch()
                left.set()

            return end

    daemon.outputs[2] = Watched(1000)
    with listening(path, daemon):
        stream = Client(str(path), patience_s=60).stream("logs", id="web", follow=True)
        next(stream)
        assert not left.is_set()
        stream.close()
        assert left.wait(60)


def test_follower_when_the_daemon_ends(path: Path, daemon: FakeDaemon) -> None:
    """A follower hears the end of a run that the end of the daemon brings about."""
    daemon.outputs[2] = Tail(1000)
    daemon.endings[2] = asyncio.Event()
    with listening(path, daemon) as loop:
        stream = Client(str(path), patience_s=60).stream("logs", id="web", follow=True)
        next(stream)
        loop.call_soon_threadsafe(daemon.endings[2].set)
    assert [piece and piece["run"]["id"] for piece in stream] == [2, None]


def test_following_what_has_ended(client: Client) -> None:
    """There is nothing to follow in a run that has ended: its output, and the end."""
    seen = list(client.stream("logs", run=1, follow=True))
    assert [piece["output"] if piece else None for piece in seen] == ["one\ntwo\nthree\n", None]


def test_following_nobody(client: Client) -> None:
    """A stream that cannot begin is refused like anything else."""
    with pytest.raises(OperationError, match="there is no run 99"):
        list(client.stream("logs", run=99, follow=True))


def test_slow_follower(path: Path, daemon: FakeDaemon) -> None:
    """More than a follower can take is dropped from the front, and counted."""
    tail = Tail(10)
    daemon.outputs[2] = tail
    with listening(path, daemon) as loop:
        stream = Client(str(path), patience_s=60).stream("logs", id="web", follow=True)
        next(stream)
        loop.call_soon_threadsafe(tail.write, b"x" * 1_000_000)
        piece = next(stream)
        assert piece["lost_bytes"] + len(piece["text"]) == 1_000_000
        assert len(piece["text"]) == 256 * 1024


# --- clients that misbehave ---


def test_many_requests_on_one_connection(path: Path, daemon: FakeDaemon) -> None:
    """Requests on one connection are answered in order, and one that is refused does not end it."""
    with listening(path, daemon):
        answers = raw(path, b'{"op":"status"}\n{"op":"nope"}\nrubbish\n{"op":"timers","params":{}}\n')
    assert [answer["ok"] for answer in answers] == [True, False, False, True]


@pytest.mark.parametrize(
    "sent",
    [b"[]\n", b"1\n", b"\n", b'{"op":1}\n', b'{"params":{}}\n', b"\xff\xfe\n", b"[" * 20_000 + b"\n"],
    ids=["list", "number", "empty", "op", "no op", "not UTF-8", "deep"],
)
def test_rubbish(path: Path, daemon: FakeDaemon, sent: bytes) -> None:
    """Rubbish is answered as such."""
    with listening(path, daemon):
        [answer] = raw(path, sent)
        assert answer["error"]["code"] == "bad_request"
        assert Client(str(path)).ask("status")["version"] == "9.9"


def test_too_long_a_request(path: Path, daemon: FakeDaemon) -> None:
    """A request beyond the limit is refused without being read to its end."""
    with listening(path, daemon):
        [answer] = raw(path, b"x" * (LONGEST_REQUEST + 10), is_over=False)
    assert "may have 65536 bytes" in answer["error"]["message"]


def test_half_a_request(path: Path, daemon: FakeDaemon) -> None:
    """What ends without a newline is no request."""
    with listening(path, daemon):
        assert raw(path, b'{"op":"shut_down"}') == []
    assert daemon.did == []


def test_action_of_a_vanished_client(path: Path, daemon: FakeDaemon) -> None:
    """What was begun for a client that goes away is done to its end."""

    def hold(daemon: FakeDaemon) -> None:
        daemon.hold = asyncio.Event()

    with listening(path, daemon, hold) as loop:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(b'{"op":"start","params":{"id":"backup"}}\n')
            assert Client(str(path)).ask("status")
        assert daemon.did == []
        assert daemon.hold is not None
        loop.call_soon_threadsafe(daemon.hold.set)
        assert Client(str(path)).ask("status")
    assert ("start", "backup") in daemon.did


def test_idle_client(path: Path, daemon: FakeDaemon) -> None:
    """A client that says nothing is hung up on."""

    async def scenario() -> None:
        server = Server(path, daemon, idle_s=0.2)
        await server.start()
        reader, writer = await asyncio.open_unix_connection(path)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        await server.close()

    asyncio.run(scenario())


def test_all_places_are_being_answered(path: Path, daemon: FakeDaemon) -> None:
    """A client that comes while every place is being answered waits, and gets the first that is free."""

    async def scenario() -> None:
        daemon.hold = asyncio.Event()
        server = Server(path, daemon, most_clients=1)
        await server.start()
        _, busy = await asyncio.open_unix_connection(path)
        busy.write(b'{"op":"start","params":{"id":"backup"}}\n')
        await asyncio.wait_for(daemon.is_holding.wait(), 60)
        reader, newcomer = await asyncio.open_unix_connection(path)
        newcomer.write(b'{"op":"status"}\n')
        answer = asyncio.ensure_future(reader.readline())
        done, _ = await asyncio.wait({answer}, timeout=0.1)  # a refusal would come at once
        assert not done
        daemon.hold.set()
        assert json.loads(await asyncio.wait_for(answer, 60))["ok"]
        for writer in (busy, newcomer):
            writer.close()
        await server.close()

    asyncio.run(scenario())


def test_crowd_of_one_instant(path: Path, daemon: FakeDaemon) -> None:
    """Of clients that come at one instant, more than there are places, as many are answered as there are."""

    async def scenario() -> None:
        server = Server(path, daemon, most_clients=2)
        await server.start()
        clients = await asyncio.gather(*(asyncio.open_unix_connection(path) for _ in range(5)))
        for _, writer in clients:
            writer.write(b'{"op":"status"}\n')
        answers = [await asyncio.wait_for(reader.readline(), 60) for reader, _ in clients]
        for _, writer in clients:
            writer.close()
        await server.close()
        assert len([answer for answer in answers if answer.startswith(b'{"ok":true')]) >= 2

    asyncio.run(scenario())


def test_requests_of_a_client_that_lost_its_place(
    path: Path, daemon: FakeDaemon, caplog: pytest.LogCaptureFixture
) -> None:
    """What a client has sent ahead and does not read is dropped when its place goes to another one."""

    async def scenario() -> None:
        server = Server(path, daemon, most_clients=1)
        await server.start()
        _, unread = await asyncio.open_unix_connection(path)
        unread.write(b'{"op":"status"}\n' * 5_000)
        reader, newcomer = await asyncio.open_unix_connection(path)
        newcomer.write(b'{"op":"status"}\n')
        assert json.loads(await asyncio.wait_for(reader.readline(), 60))["ok"]
        newcomer.write(b'{"op":"status"}\n')
        assert json.loads(await asyncio.wait_for(reader.readline(), 60))["ok"]
        unread.transport.abort()
        newcomer.close()
        await server.close()

    asyncio.run(scenario())
    assert "socket.send() raised exception" not in caplog.text


# --- the socket itself ---


def test_mode(path: Path, daemon: FakeDaemon) -> None:
    """Only the owner may open the socket, whatever the umask, which is left as it was."""
    before = os.umask(0)
    try:
        with listening(path, daemon):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert os.umask(0) == 0
    finally:
        os.umask(before)


def test_socket_goes_with_its_daemon(path: Path, daemon: FakeDaemon) -> None:
    """A daemon that ends takes its socket with it, and a client is told that none is there."""
    with listening(path, daemon):
        assert path.exists()
    assert not path.exists()
    with pytest.raises(UnreachableError, match="there is no socket"):
        Client(str(path)).ask("status")


def test_dead_daemon(path: Path, daemon: FakeDaemon) -> None:
    """The socket of a dead daemon is no daemon to a client, and is replaced by the next one."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(UnreachableError, match="has died"):
        Client(str(path)).ask("status")
    with listening(path, daemon):
        assert Client(str(path)).ask("status")["pid"] == 1234


def test_live_daemon(path: Path, daemon: FakeDaemon) -> None:
    """A second daemon on the same socket is refused, and the first goes on."""
    with listening(path, daemon):
        with pytest.raises(SocketError, match="a daemon is listening there already"):
            asyncio.run(Server(path, daemon).start())
        assert Client(str(path)).ask("status")["pid"] == 1234


def test_other_file(path: Path, daemon: FakeDaemon) -> None:
    """A file that is not a socket is left alone."""
    path.write_text("precious")
    with pytest.raises(SocketError, match="not a socket"):
        asyncio.run(Server(path, daemon).start())
    assert path.read_text() == "precious"


def test_replaced_socket_is_left(path: Path, daemon: FakeDaemon) -> None:
    """A daemon does not remove the socket that another one has put in place of its own."""
    with listening(path, daemon):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.exists()


def test_missing_directory(tmp_path: Path, daemon: FakeDaemon) -> None:
    """A socket that cannot be made is refused with what to look at."""
    with pytest.raises(SocketError, match="is its directory there and writable"):
        asyncio.run(Server(tmp_path / "no" / "duly.sock", daemon).start())


def test_long_path(tmp_path: Path, daemon: FakeDaemon) -> None:
    """A path that does not fit into an address is refused with its length, by both sides."""
    path = tmp_path / ("x" * 120)
    with pytest.raises(PathTooLongError, match="and may have 107"):
        asyncio.run(Server(path, daemon).start())
    with pytest.raises(UnreachableError, match="and may have 107"):
        Client(str(path)).ask("status")


def test_daemon_that_hangs_up(path: Path) -> None:
    """A daemon that ends in the middle of an answer is an error, not an answer."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        stream = Client(str(path), patience_s=60).stream("status")

        def hang_up() -> None:
            accepted, _ = server.accept()
            accepted.recv(100)
            accepted.sendall(b'{"ok":tr')
            accepted.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(OperationError, match="ended before it answered"):
            next(stream)
        thread.join()


def test_something_else_answers(path: Path) -> None:
    """What is not a daemon's answer is not taken for one."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        server.settimeout(60)
        stream = Client(str(path), patience_s=60).stream("status")

        def answer() -> None:
            accepted, _ = server.accept()
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n")
            accepted.recv(100)
            accepted.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(OperationError, match="no duly daemon"):
            next(stream)
        thread.join()


@pytest.mark.parametrize(("uid", "who"), [(0, "uid 0"), (4242, "uid 4242"), (4243, None)])
def test_peer(monkeypatch: pytest.MonkeyPatch, uid: int, who: str | None) -> None:
    """The daemon's own user and root may ask, as the kernel tells them, and nobody else."""

    class Writer:
        def get_extra_info(self, _name: str) -> Any:
            return self

        def getsockopt(self, *_option: int) -> bytes:
            return struct.pack("3i", 1, uid, uid)

    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    writer: Any = Writer()
    assert _peer(writer) == who


def test_a_silent_daemon_is_told_from_a_busy_one(path: Path, daemon: FakeDaemon) -> None:
    """Anyone who waits does so for as long as the daemon answers others, and no longer."""
    hold = asyncio.Event()
    daemon.hold = hold
    with listening(path, daemon) as loop:
        loop.call_soon_threadsafe(lambda: loop.call_later(0.5, hold.set))
        assert Client(str(path), patience_s=0.1, is_waiting=True).ask("start", id="backup")["run"] == 41
        hold.clear()
        with pytest.raises(UnreachableError, match="says nothing") as caught:
            Client(str(path), patience_s=0.1).ask("start", id="backup")
        assert (caught.value.state, caught.value.is_asked) == ("silent", True)
        loop.call_soon_threadsafe(hold.set)


def test_nobody_waits_for_a_silent_daemon(path: Path) -> None:
    """A daemon that answers nobody is not waited for, and what it was asked may yet be done."""
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        with pytest.raises(UnreachableError, match="says nothing") as caught:
            Client(str(path), patience_s=0.1, is_waiting=True).ask("stop", id="web")
    assert (caught.value.state, caught.value.is_asked) == ("silent", True)


def test_a_daemon_that_falls_silent(path: Path) -> None:
    """A stream that began and does not go on is an error of its own, and not started over from the store."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        stream = Client(str(path), patience_s=0.1, is_waiting=True).stream("logs", id="web", follow=True)
        accepted: list[socket.socket] = []

        def begin() -> None:
            accepted.append(server.accept()[0])
            accepted[0].sendall(b'{"ok":true,"result":{"text":"a"},"more":true}\n')

        thread = threading.Thread(target=begin)
        thread.start()
        assert next(stream) == {"text": "a"}
        with pytest.raises(OperationError, match="answers no longer") as caught:
            next(stream)
        thread.join()
        accepted[0].close()
    assert caught.value.code == "unreachable"


def test_what_is_no_text_is_told_all_the_same(client: Client, daemon: FakeDaemon) -> None:
    """A path that holds bytes that are no text is escaped in whatever tells of it."""
    daemon.faults = ("the store /caf\udce9/duly.db is full",)
    assert client.ask("status")["health"]["reasons"][0] == "the store /caf\\udce9/duly.db is full"
    with pytest.raises(OperationError, match=r"caf\\udce9"):
        raise_back(OperationError("failed", "/caf\udce9 is gone", path="/caf\udce9", others=["\udce9"]))


def raise_back(error: OperationError) -> None:
    """An error, sent and received."""
    answer_from(error_line(error))
