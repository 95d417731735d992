"""One report every minute, built by whichever Celery worker is free.

In one terminal `celery -A reports worker`, in another `python reports.py`. Kill the second while a report is
being built, and start it again: it finds that report and waits for it.
"""

import asyncio
import os
from contextlib import suppress
from datetime import timedelta

from celery import Celery

from duly import Scheduler
from duly.integrations.celery import task

REDIS = os.environ.get("REDIS", "redis://localhost:6379")
app = Celery("reports", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.broker_connection_retry_on_startup = True


def build(title: str) -> int:
    """Build a report, in a worker; how many pages it has."""
    return len(title.split())


app.task(build, name="reports.build")

built = task("reports.build", args=("figures of today",), timeout=timedelta(minutes=30), app=app)


async def report() -> None:
    """Have the report built, and say so. To register `built` itself would do, too."""
    print(f"the report has {await built()} pages")


async def main() -> None:
    """Run until cancelled, then stop in good order."""
    scheduler = Scheduler("state.db")
    await scheduler.initialize([("report", "* * * * *", report, timedelta(minutes=5))])
    try:
        await asyncio.Event().wait()
    finally:
        await scheduler.stop()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
