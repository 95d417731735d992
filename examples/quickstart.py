"""The twelve lines of the README: a durable task, every minute, until Ctrl-C."""

import asyncio
from datetime import timedelta

from duly import Scheduler


async def backup() -> None:
    """Do the work."""
    print("backing up")


async def main() -> None:
    """Run until cancelled, then stop in good order."""
    scheduler = Scheduler("state.db")
    await scheduler.initialize([("backup", "* * * * *", backup, timedelta(minutes=5))])
    try:
        await asyncio.Event().wait()
    finally:
        await scheduler.stop()


if __name__ == "__main__":
    asyncio.run(main())
