"""Many machines: nodes that share a PostgreSQL database claim the rows of due tasks.

    table           what nodes ask of the database: requests and answers
    postgres_table  the same in SQL; `tests/worlds/model_table.py` is a model of it
    connection      one connection, with a limit for each wait; `statements` and `messages` serve it
    node            one node: lease, rows, what to send next
    backend         the loop's side: claims, decides, writes ends
    clock           the time of the database, between two answers
    tasks, lists    tasks of the library as rows; how a list becomes the list of all nodes
    store           what a cluster store is; `postgres` is one, with the heartbeat thread
    copying         the tasks of a SQLite file to a namespace

The invariant: a body acts only while its node trusts its lease. A row leaves a node only after that trust is
over, or in a transaction of the node itself. docs/spec/claims.md says why that is enough.

    joined and trusted --- no answered heartbeat for 5/6 of a lease ---> not trusted: runs are cut off
           ^   |                                                                |
           |   +--- answer lost, fenced, or a server that has forgotten --------+
           |                                                                    v
           +-------------------- comes back under a new id ---------------------+

Lock order: `RowBackend.writing`, then `Node.lock`. Nothing waits while it holds `Node.lock`.

What fails: a node that is silent for a lease is fenced by another, which releases its rows. A database that
is away ends trust everywhere, so all runs are cut off and start once more when it is back. A loop that is
blocked keeps its lease, because heartbeats have a thread, but gives up what it has not called. A row that
cannot be read is left alone, and all others run.
"""

from duly.lazy import lazy_names

__all__ = ["PostgresStore"]

__getattr__ = lazy_names("duly.cluster", {"PostgresStore": "postgres"})  # not every user has psycopg
