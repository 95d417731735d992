"""The daemon with somebody looking over its shoulder: python -m tests.acceptance.watched CONFIG SEEN.

It writes every SQL statement to SEEN as it is executed, and at the end the names of all modules of duly.
"""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

import apsw

from duly.config.loading import load
from duly.daemon.foreground import serve
from duly.web.dashboard import DaemonDashboard


def main(config: str, seen: str) -> None:
    """Run the daemon of *config*, and write what it did to *seen*."""
    with Path(seen).open("w", buffering=1) as file:

        def note(_cursor: Any, statement: str, _bindings: Any) -> bool:
            print("sql", " ".join(statement.split()), file=file)
            return True

        def watch(connection: apsw.Connection) -> None:
            connection.exec_trace = note

        apsw.connection_hooks.append(watch)
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(levelname)-7s %(message)s")
        loaded = load(config)
        dashboard = DaemonDashboard(loaded, os.environ) if loaded.dashboard.enabled else None
        asyncio.run(serve(loaded, dashboard=dashboard))
        for name in sorted(name for name in sys.modules if name.startswith("duly")):
            print("module", name, file=file)


if __name__ == "__main__":
    main(*sys.argv[1:])
