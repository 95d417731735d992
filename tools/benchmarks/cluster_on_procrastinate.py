"""Procrastinate as one process of a cluster: a worker that also defers periodic tasks, as each worker does.

It runs a hundred jobs at a time, as APScheduler does by itself; otherwise it is as it comes.
"""

import asyncio
import time

from procrastinate import App, JobContext, PsycopgConnector
from tools.benchmarks.cluster_notes import Notebook
from tools.benchmarks.cluster_program import EVERY_S, Orders, say_ready

_AT_ONCE = 100


async def serve(orders: Orders, notebook: Notebook) -> None:
    """Be a worker until the process is killed."""
    began_s = time.perf_counter()
    app = App(connector=PsycopgConnector(conninfo=orders.url))

    async def work(context: JobContext, timestamp: int, name: str) -> None:
        del timestamp  # which due it answers
        run = str(context.job.id)
        notebook.note_start(name, run)
        if lasts_s := orders.lasts_s(name):
            await asyncio.sleep(lasts_s)  # noqa: TID251 (real time is what is measured)
            notebook.note_end(name, run)

    task = app.task(name="work", pass_context=True)(work)
    # The sixth field is that of seconds.
    cron = f"* * * * * */{EVERY_S}" if orders.kind == "stream" else orders.cron
    for name in orders.names:
        app.periodic(cron=cron, periodic_id=name, task_kwargs={"name": name})(task)
    async with app.open_async():
        if orders.is_first:
            await app.schema_manager.apply_schema_async()
        say_ready(took_s=time.perf_counter() - began_s)
        await app.run_worker_async(concurrency=_AT_ONCE, install_signal_handlers=False)
