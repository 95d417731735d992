"""A board in a PostgreSQL database, for many machines (`pip install 'duly[postgres]'`)."""

try:
    import psycopg  # noqa: F401 (only to say what is missing)
except ImportError as error:
    raise ImportError("PostgreSQL needs psycopg: pip install 'duly[postgres]'") from error

from duly.store.postgres.board import PostgresBoard

__all__ = ["PostgresBoard"]
