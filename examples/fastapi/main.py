"""An API with tasks in its workers: `uvicorn main:api --workers 2`.

One worker runs the tasks. The other stands by, and takes over when the first ends.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from duly import App, Run, every
from duly.integrations.fastapi import lifespan

jobs = App("jobs.db", standby=True)
rates: dict[str, float] = {}


@asynccontextmanager
async def resources(_api: FastAPI) -> AsyncIterator[None]:
    """Open here what the tasks need. It is closed after the last of them has ended."""
    rates["EUR"] = 1.0
    yield
    rates.clear()


api = FastAPI(lifespan=lifespan(jobs, resources))


@jobs.task(every("1s"))
async def fetch_rates() -> None:
    rates["USD"] = 1.1
    print(f"{os.getpid()} fetched {len(rates)} rates", flush=True)


@jobs.task(every("1h"))
def send_report(run: Run) -> None:
    print(f"{os.getpid()} sent a report: {run.cause}", flush=True)


@api.post("/reports")
async def send_now() -> dict[str, str]:
    await (await jobs.run_now("send_report"))
    return {"report": "sent"}


@api.get("/jobs")
async def show_jobs() -> dict[str, str]:
    return {task.name: task.schedule for task in await jobs.tasks()}


api.mount("/dashboard", jobs.dashboard())
