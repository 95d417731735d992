"""A store with a long history, made by SQL alone: as if every service had run at even distances until now."""

import time
from pathlib import Path

import apsw

from duly.store.schema import APPLICATION_ID, migrations

_ROUND = """
WITH RECURSIVE place(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM place WHERE i + 1 < :services)
INSERT INTO run
SELECT :first + i, printf('job-%05d', i), printf('job-%05d', i), 'schedule',
       :at + i * :gap, :at + i * :gap + 2000, :at + i * :gap + 150000 + i * 7 % 1000000,
       148000 + i * 7 % 1000000,
       CASE WHEN (:first + i) % 50 = 7 THEN 'exit' ELSE 'success' END, (:first + i) % 50 = 7, NULL, '',
       1000 + i, 1, 'an earlier boot', 'copied ' || (:first + i) || ' files' || char(10), 0, NULL, NULL,
       NULL, NULL
FROM place
"""
_PERIOD_US = 3600 * 1_000_000
"""Each service runs once an hour."""


def fill(path: Path, services: int, runs: int) -> None:
    """Make a store at *path* in which every service has ended *runs* times, one in fifty badly."""
    connection = apsw.Connection(str(path))
    for setting in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = OFF", "BEGIN"):
        connection.execute(setting).fetchall()
    for step in migrations():
        connection.execute(step)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(migrations())}")
    now_us = time.time_ns() // 1000  # noqa: TID251 (a benchmark of the host's clock)
    for number in range(runs):
        at_us = now_us - (runs - number) * _PERIOD_US
        chosen = {"first": number * services + 1, "at": at_us, "gap": _PERIOD_US // services}
        connection.execute(_ROUND, {**chosen, "services": services})
    connection.execute("COMMIT")
    connection.close()
