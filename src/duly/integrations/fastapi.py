"""FastAPI and Starlette: an App that runs in each worker of the server, for as long as that serves."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from duly.app import App

__all__ = ["lifespan"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(jobs: App, inner: Lifespan | None = None) -> Lifespan:
    """A lifespan that starts and stops *jobs*. What the bodies need is opened and closed by *inner*."""

    @asynccontextmanager
    async def run(api: Any) -> AsyncIterator[Any]:
        if inner is None:
            async with jobs:
                yield
        else:
            async with inner(api) as state, jobs:
                yield state

    return run
