"""Celery's beat on duly: `celery -A shop worker`, and as often as you like `celery -A shop beat`.

One beat sends. Kill it: another one goes on, and nothing is sent twice.
"""

import os

from celery import Celery
from celery.schedules import crontab

REDIS = os.environ.get("REDIS", "redis://localhost:6379")
app = Celery("shop", broker=f"{REDIS}/0", backend=f"{REDIS}/1")
app.conf.update(
    broker_connection_retry_on_startup=True,
    timezone="Europe/Berlin",
    beat_scheduler="duly.integrations.celery:BeatScheduler",
    duly_store="beat.db",
    beat_schedule={
        "prices": {"task": "shop.fetch_prices", "schedule": 1.0},
        "report": {"task": "shop.report", "schedule": crontab(minute=30, hour=2), "args": ["daily"]},
    },
)


def fetch_prices() -> None:
    """Fetch the prices, in a worker."""
    print("fetched the prices", flush=True)


def report(kind: str) -> None:
    """Build a report, in a worker."""
    print(f"built the {kind} report", flush=True)


app.task(fetch_prices, name="shop.fetch_prices")
app.task(report, name="shop.report")
