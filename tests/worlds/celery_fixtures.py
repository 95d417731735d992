"""What the Celery tests share: servers and workers, to be used together or to be harmed alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from tests.worlds.celery import Gate, Redis, Worker, app_at, closed, redis_in


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis that all tests share which do not harm it."""
    with redis_in(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def worker(redis: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that all tests share which do not kill it."""
    running = Worker(redis, tmp_path_factory.mktemp("worker"), pool="prefork")
    running.start()
    yield running
    running.kill()


@pytest.fixture
def app(redis: Redis) -> Iterator[Celery]:
    """The app, as duly's side has it."""
    made = app_at(redis.broker, redis.backend)
    yield made
    closed(made)


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[Redis]:
    """A Redis that the test may kill."""
    with redis_in(tmp_path) as server:
        yield server


@pytest.fixture
def own_worker(own_redis: Redis, tmp_path: Path) -> Iterator[Worker]:
    """A worker that the test may kill, and that takes back soon what a dead one had begun."""
    running = Worker(own_redis, tmp_path, visible_s=0.1)
    yield running
    running.kill()


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where the bodies wait."""
    made = Gate(tmp_path)
    yield made
    made.close()
