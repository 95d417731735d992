"""A store in one SQLite file: WAL, `synchronous=FULL`, one writer thread.

Every write is one transaction. What runs changed is one statement, whatever the number of tasks. A
connection that failed is closed and opened again for the next write. So a fault that passes needs no restart:
a full disk, a lock, a network mount that was pulled. The file is never written before it is known to be ours
and not newer.

Other programs do things to the files of a store in use: restore a backup, delete the log, fill it with
zeros. That is looked for before each write (`files.change_between`) and, frame by frame, before the log is
copied into the database (`files.sound_frames`). What is found is a StoreError, and the scheduler above then
writes all its tasks again. Before that:

- The file is gone, is another one, or was written in place: our log is kept aside. What is there now is used
  only if it is empty, or an intact store of the same scheduler.
- The log is gone: we still have it open, so it is copied to the database.
- The log is damaged: database and log are kept aside, and what is sound in the log is used.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

import apsw
import msgspec

from duly.core.record import STATE_COLUMNS, record_of
from duly.core.task import Task
from duly.errors import StoreDamagedError, StoreError, StoreReplacedError, TaskListMismatchError
from duly.instant import Instant, datetime_at
from duly.marks import mark
from duly.store.files import (
    FileChange,
    FileState,
    LogCount,
    StoreFiles,
    change_between,
    copy_frames,
    copy_open_file,
    files_at,
    keep_log,
    kept_name,
    sound_frames,
)
from duly.store.inspection import DAMAGE, FAULTS, check_replacement, damage_at, findings_at
from duly.store.lock import FileLock
from duly.store.protocol import Contents
from duly.store.readonly import SideReader, connection_to
from duly.store.schema import (
    Packed,
    Reasons,
    checked_version,
    in_transaction,
    migrate,
    migrations,
    packed,
    reason_of,
    sql,
    task_sql,
)
from duly.threads import Worker, Works

T = TypeVar("T")

_CHECKPOINT_PAGES = 1_000
_AT_ONCE = 1_000
"""So many whole tasks are written with one statement, and all in one transaction."""

_encoded = msgspec.json.Encoder().encode
_changed = attrgetter("id", *STATE_COLUMNS)
"""What running changes in a task, after its id. In JSON and in SQLite true is 1."""


class OnWrite(Protocol):
    """Called with each write. It must not raise."""

    def __call__(self, seconds: float, /, *, is_written: bool) -> object: ...


class SQLiteStore:
    """Tasks in a SQLite file.

    *busy_ms* is how long a write waits for another program's lock before it fails for now. *vfs* names a
    SQLite file system other than the default; tests use it for disks that fail. *worker* does the blocking
    work elsewhere than in a thread of its own; a simulation has none.
    """

    def __init__(
        self, path: Path, *, busy_ms: int = 2_000, vfs: str | None = None, worker: Works | None = None
    ) -> None:
        self._name = str(path)
        # Absolute from here on: a program that changes directory must not change its store.
        self._path = Path(os.path.abspath(path))  # noqa: PTH100 (links stay links)
        self._busy_ms = busy_ms
        self._vfs = vfs
        self._lock = FileLock(self._path, self._name)
        self._worker = Worker(f"duly store {path}") if worker is None else worker
        self._side_reader = SideReader(self._path, busy_ms=busy_ms, vfs=vfs) if worker is None else None
        self._connection: apsw.Connection | None = None
        self._files = StoreFiles(None, None)
        """Our files as they were when only we had written them."""
        self._is_replaced = False
        """Whether the file at our path may be another's, and must be looked at before it is written."""
        self._is_log_damaged = False
        self._has_lost_rows = False
        self.restorers: list[Callable[[apsw.Connection], object]] = []
        """Called in the writer's thread when rows may be lost: each writes what it knows."""
        self._scheduler_id = self._new_id = ""
        self._wal_pages = self._tried_pages = self._page_bytes = 0
        self._is_open = False
        self.on_write: OnWrite | None = None
        """Called in the writer's thread with the seconds that each write took, and whether it was written."""

    @property
    def name(self) -> str:
        return self._name

    @property
    def scheduler_id(self) -> str:
        """Empty until the store is open."""
        return self._scheduler_id

    async def open(self, new_id: str) -> Contents:
        """Take hold of the file, bring it up to date, and read it."""
        try:
            return await self._worker.do(partial(self._open, new_id))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                await self._worker.do(self._shut)  # what nobody waits for any more may yet succeed
            self._worker.end()
            raise

    @property
    def path(self) -> Path:
        return self._path

    def take(self) -> None:
        """Lock the file ahead of `open`. Raises StoreInUseError or StoreError."""
        if self._lock.descriptor is None:
            self._lock.acquire()

    def leave(self) -> None:
        """Unlock the file that was taken and not opened."""
        if not self._is_open:
            self._lock.release()

    async def replace(self, *, put: Sequence[Task], removed: Sequence[int]) -> None:
        def change(connection: apsw.Connection) -> None:
            if removed:
                connection.execute(sql("remove"), (_encoded(removed).decode(),))
            # In parts: the text of a hundred thousand tasks would be half of the memory that they take.
            for begin in range(0, len(put), _AT_ONCE):
                values, bindings = packed([record_of(task) for task in put[begin : begin + _AT_ONCE]])
                connection.execute(task_sql("put", values), bindings)

        await self.write(change)

    async def save(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            await self._do(self._check_log)
            return
        # Apart: much is alike in tasks that start together, and in tasks that end together.
        started = [_changed(task) for task in tasks if task.running_since_us is not None]
        ended = [_changed(task) for task in tasks if task.running_since_us is None]
        # Packed here and not in the thread, which would wait for the interpreter while the loop is busy.
        change = partial(self._save, [packed(rows) for rows in (started, ended) if rows], len(tasks))
        # One row is written whole or not at all, without our saying so.
        write = change if len(tasks) == 1 else partial(in_transaction, change)
        await self._do(partial(self._write, write))
        self._checkpoint_soon()

    async def read(self, query: Callable[[apsw.Connection], T]) -> T:
        """What *query* finds in the other tables of the file. Raises StoreError."""
        return await self._worker.do(lambda: self._with_store_errors(partial(query, self._connected())))

    async def look(self, query: Callable[[apsw.Connection], T]) -> T:
        """Like `read`, beside the writer: what takes long keeps nobody from writing. Raises StoreError."""
        if self._side_reader is None or not self._is_open or self._connection is None:
            return await self.read(query)
        try:
            return await self._side_reader.look(query, self._files.database and self._files.database.identity)
        except FAULTS as error:
            raise await self._worker.do(partial(self._fault, error)) from error

    async def write(self, change: Callable[[apsw.Connection], object]) -> None:
        """Make *change* to the other tables of the file, in one transaction. Raises StoreError."""
        await self._do(partial(self._write, partial(in_transaction, change)))
        self._checkpoint_soon()

    async def close(self) -> None:
        # The reader first: the connection that closes last copies the log, and a reader cannot.
        if self._side_reader is not None:
            await self._side_reader.close()
        try:
            await self._worker.do(self._close)
        finally:
            self._worker.end()

    async def drop(self) -> None:
        """Let go without another write, as the end of the process would."""
        if self._side_reader is not None:
            await self._side_reader.close()
        await self._worker.do(self._abandon)
        self._worker.end()

    async def _do(self, work: Callable[[], object]) -> None:
        """Do *work* in the worker. If our files turn out to be changed, secure what is left, and raise."""
        try:
            await self._worker.do(work)
        except _FilesChangedError as changed:
            # SQLite shares one index of the log among all connections of a process: it lives as long as one.
            if self._side_reader is not None:
                await self._side_reader.close()
            await self._worker.do(partial(self._secure, changed.change))

    # --- in the worker thread ---

    def _open(self, new_id: str) -> Contents:
        self.take()
        self._is_open, self._is_replaced = True, False
        try:
            self._scheduler_id, self._new_id = "", new_id
            # Before a connection is made: the first read of a connection replays the log.
            self._with_store_errors(self._check_left_log)
            connection = self._connected()
            records = self._with_store_errors(lambda: connection.execute(task_sql("load")).fetchall())
        except BaseException:
            self._shut()
            raise
        return Contents(self._scheduler_id, records)

    def _save(self, parts: Sequence[Packed], expected: int, connection: apsw.Connection) -> None:
        actual = 0
        for values, bindings in parts:
            connection.execute(task_sql("save", values), bindings)
            actual += connection.changes()
        # Inside the transaction: if a row is missing, nothing is written.
        if actual != expected:
            raise TaskListMismatchError(expected=expected, actual=actual)

    def _write(self, write: Callable[[apsw.Connection], object]) -> None:
        if (on_write := self.on_write) is None:
            self._write_now(write)
            return
        begun_s, is_written = time.perf_counter(), False
        try:
            self._write_now(write)
            is_written = True
        finally:
            on_write(time.perf_counter() - begun_s, is_written=is_written)

    def _write_now(self, write: Callable[[apsw.Connection], object]) -> None:
        # Before the write: afterwards another's change could not be told from ours.
        self._check_files()
        connection = self._connected()
        try:
            self._with_store_errors(partial(write, connection))
        except StoreError as error:
            # Busy leaves a connection as good as before. After anything else a fresh one is safer.
            if not isinstance(error.__cause__, apsw.BusyError):
                mark("connection renewed")
                self._disconnect()
            raise

    def _check_files(self) -> None:
        """Notice what another program did to our files. Raises _FilesChangedError."""
        if self._connection is None:
            return
        now = files_at(str(self._path))
        change = change_between(self._files, now)
        if change is None and self._is_log_damaged:
            change = FileChange.LOG_DAMAGED
        if change is not None:
            raise _FilesChangedError(change)
        self._files = now

    def _check_log(self) -> bool:
        """Whether the log is what was written; False if that cannot be checked. Raises _FilesChangedError."""
        self._check_files()
        if self._connection is None:
            return False
        # Counted before they are checked: another program may add frames meanwhile.
        frames = LogCount(self._connection).frames
        try:
            sound = sound_frames(f"{self._path}-wal", self._page_bytes)
        except (OSError, apsw.FullError, apsw.IOError, apsw.CantOpenError):
            return False  # there is no room for the copy
        if sound < frames:
            # Noted until the connection is renewed: the checks in between compare sizes only.
            self._is_log_damaged = True
            raise _FilesChangedError(FileChange.LOG_DAMAGED)
        return True

    def _check_left_log(self) -> None:
        """Refuse a log that a dead process left, if the database was put there after it and does not fit.

        People restore a backup after a crash and forget the log. SQLite would replay it over the backup.
        """
        here = files_at(str(self._path))
        if here.log is None or here.database is None or here.database.changed_ns <= here.log.modified_ns:
            return
        if here.log.size_bytes and (found := findings_at(self._path, most=1)):
            remedy = f"If the file was restored, its log ({self._path.name}-wal) is another's: remove it"
            what = f"{found[0].what}. {remedy}"
            raise StoreDamagedError(store=self.name, table=found[0].table, what=what)

    def _secure(self, change: FileChange) -> NoReturn:
        """Let go of files that were changed under us, and keep what is ours of them. Raises StoreError."""
        # First: whatever fails below, the next connection restores what is known.
        self._has_lost_rows = True
        if self._connection is None:  # two writes have noticed it, and this is the second
            raise StoreError(store=self.name, reason=str(change))
        if change is FileChange.LOG_REMOVED:
            kept = self._with_store_errors(self._put_foreign_log_aside)
            what_next = f"{kept}it is made again"
        elif change is FileChange.LOG_DAMAGED:
            kept = self._with_store_errors(self._put_damage_aside)
            what_next = f"both are kept as {kept}, and what is known is written again"
        else:
            what_next = self._with_store_errors(partial(self._leave_file, self._files.log))
        raise StoreError(store=self.name, reason=f"{change}; {what_next}")

    def _put_foreign_log_aside(self) -> str:
        """Copy our log, which has no name any more, to the database; another one at its place is kept."""
        kept = ""
        # Before ours is closed: SQLite removes the log by its name, and that is the other one's by now.
        if files_at(str(self._path)).log is not None:
            kept = kept_name(str(self._path), "replaced")
            keep_log(str(self._path), kept)
            kept = f"another one is kept as {Path(kept).name}-wal, and "
        self._disconnect()
        return kept

    def _put_damage_aside(self) -> str:
        """Keep a damaged log and its database under another name, and go on with what is sound."""
        assert self._connection is not None
        assert self._lock.descriptor is not None
        path, kept = str(self._path), kept_name(str(self._path), "damaged")
        sound, copied = sound_frames(f"{path}-wal", self._page_bytes), LogCount(self._connection).copied
        # Closed before anything is copied: an open connection could still checkpoint the damage.
        self._disconnect(is_copied=False)
        copy_open_file(self._lock.descriptor, kept)
        keep_log(path, kept)
        # The database has the first frames already. With fewer than those, older pages would undo newer ones.
        if sound > max(copied, 0):
            copy_frames(f"{kept}-wal", f"{path}-wal", sound, self._page_bytes)
        return Path(kept).name

    def _leave_file(self, log: FileState | None) -> str:
        """Let go of a file that is not ours any more, and say what lies in its place."""
        path, kept_log = str(self._path), ""
        self._is_replaced = True
        # Not copied: if the file was written in place, our pages would go into somebody else's database.
        self._disconnect(is_copied=False)
        self._lock_anew()  # if another scheduler has the new file, then it has the log, too
        here = files_at(path).log
        if here is not None and log is not None and here.identity == log.identity:
            kept = kept_name(path, "replaced")
            keep_log(path, kept)
            kept_log = f"its log is kept as {Path(kept).name}-wal; "
        newest_us = self._replacement_age_us()
        if newest_us is None:
            return f"{kept_log}there is nothing in its place, and what is known is written again"
        at = datetime_at(newest_us, UTC).isoformat(timespec="seconds")
        return (
            f"{kept_log}an older copy of it is in its place, in which the last run began at {at}: "
            "what is known is written again, and the history since then is lost"
        )

    def _lock_anew(self) -> None:
        """Lock the file that is at the path now."""
        # Released before acquired: if another scheduler is faster, then it has the file, and must keep it.
        self._lock.release()
        self._lock.acquire()

    def _replacement_age_us(self) -> Instant | None:
        try:
            return check_replacement(self._path, self.name, self._scheduler_id)
        except StoreError as error:
            raise StoreReplacedError(store=self.name, fault=error) from error

    def _connected(self) -> apsw.Connection:
        if not self._is_open:
            raise StoreError(store=self.name, reason="is not open")
        if self._connection is None:
            if self._is_replaced:
                # Once more: the file may have been replaced again since it was left.
                self._lock_anew()
                self._with_store_errors(self._replacement_age_us)
            connection = self._with_store_errors(self._connect)
            # Before the connection is kept: if this fails, the next one restores again.
            if self._has_lost_rows:
                self._with_store_errors(partial(self._restore, connection))
            # Noted after our own first writes: from now on any other change is somebody else's.
            self._connection, self._files = connection, files_at(str(self._path))
            self._is_replaced = self._is_log_damaged = self._has_lost_rows = False
        return self._connection

    def _restore(self, connection: apsw.Connection) -> None:
        try:
            for restore in self.restorers:
                in_transaction(restore, connection)
        except BaseException:
            connection.close(force=True)
            raise

    def _connect(self) -> apsw.Connection:
        connection = connection_to(
            self._path, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE, self._vfs
        )
        try:
            connection.set_busy_timeout(self._busy_ms)
            # It only reads. Nothing below may be done to a file that is not ours, or newer than we are.
            version = checked_version(connection, self.name)
            connection.execute("PRAGMA journal_mode = WAL")
            # Not NORMAL: in WAL mode that may lose the last commits at a power failure, and a start must be
            # durable before its callback (spec/scheduler.md 3.4).
            connection.execute("PRAGMA synchronous = FULL")
            # We checkpoint after a write has been acknowledged, not while somebody waits for it.
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            self._page_bytes = int(str(connection.execute("PRAGMA page_size").get))
            connection.set_wal_hook(self._on_wal)
            migrate(connection, version, migrations())
            self._scheduler_id = _scheduler_id_in(connection, self._scheduler_id or self._new_id)
        except BaseException:
            connection.close(force=True)
            raise
        return connection

    def _on_wal(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_soon(self) -> None:
        # Each try reads the whole log. One that a reader prevents is not repeated with every write.
        if self._wal_pages < self._tried_pages:
            self._tried_pages = 0  # the log has started over
        if self._wal_pages - self._tried_pages > _CHECKPOINT_PAGES:
            self._tried_pages = self._wal_pages
            self._worker.post(self._checkpoint)

    def _checkpoint(self) -> None:
        with suppress(_FilesChangedError):  # the next write finds it too, and deals with it
            if self._check_log() and self._connection is not None:
                # If it cannot be done now (a reader, a full disk) the log grows until the next try.
                # PASSIVE waits for no reader and keeps no writer waiting.
                self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                # Noted again: the checkpoint has just written the database file.
                self._files = files_at(str(self._path))

    def _close(self) -> None:
        # In the worker, behind every write already handed over.
        try:
            if not self._check_log():
                self._disconnect(is_copied=False)  # SQLite checks it at the next start
        except _FilesChangedError as changed:
            self._secure(changed.change)
        finally:
            self._shut()

    def _shut(self) -> None:
        self._is_open = False
        # Closed before it is unlocked: the next holder must not meet our checkpoint.
        self._disconnect()
        self._lock.release()

    def _disconnect(self, *, is_copied: bool = True) -> None:
        """Close the connection, with the log copied to the database, or left as it is."""
        connection, self._connection = self._connection, None
        if connection is not None:
            # What cannot be copied stays in the log.
            with suppress(apsw.Error):
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(not is_copied))
                connection.close(force=True)

    def _abandon(self) -> None:
        # First: the disconnect in `_shut` would copy the log, which a crash does not.
        self._disconnect(is_copied=False)
        self._shut()

    def _with_store_errors(self, act: Callable[[], T]) -> T:
        """Do *act*; whatever SQLite or the file system says against it becomes a StoreError."""
        try:
            return act()
        except FAULTS as error:
            raise self._fault(error) from error

    def _fault(self, error: BaseException) -> StoreError:
        if isinstance(error, DAMAGE) and not isinstance(error, apsw.NotADBError):
            return damage_at(self._path, self.name, error)
        return StoreError(store=self.name, reason=reason_of(error, _REASONS), cause=error)


class SQLiteTimerRepository(Generic[T]):
    """The timers in a SQLite store that is open: what the engine writes to, as it writes tasks to a store."""

    def __init__(
        self, store: SQLiteStore, scheduler_id: str, record_of: Callable[[T], Sequence[object]]
    ) -> None:
        self._store = store
        self._scheduler_id = scheduler_id
        self._record_of = record_of

    @property
    def name(self) -> str:
        return self._store.name

    async def open(self, _new_id: str) -> Contents:
        """Read the timers; the file is held already."""
        query = "SELECT * FROM timer ORDER BY id"
        records = await self._store.read(lambda connection: connection.execute(query).fetchall())
        return Contents(self._scheduler_id, records)

    async def replace(self, *, put: Sequence[T], removed: Sequence[int]) -> None:
        rows = self._encoded(put)

        def change(connection: apsw.Connection) -> None:
            if removed:
                gone = _encoded(removed).decode()
                connection.execute("DELETE FROM timer WHERE id IN (SELECT value FROM json_each(?))", (gone,))
            connection.execute(sql("timer_put"), (rows,))

        await self._store.write(change)

    async def save(self, timers: Sequence[T]) -> None:
        if not timers:
            await self._store.save([])
            return
        rows = self._encoded(timers)
        await self._store.write(lambda connection: connection.execute(sql("timer_put"), (rows,)))

    async def close(self) -> None:
        """Nothing: the store closes the file."""

    async def drop(self) -> None:
        """Nothing: the store closes the file."""

    def _encoded(self, timers: Sequence[T]) -> str:
        return _encoded([self._record_of(timer) for timer in timers]).decode()


class _FilesChangedError(Exception):
    """Another program has changed our files; the worker cannot deal with it alone."""

    def __init__(self, change: FileChange) -> None:
        super().__init__(change)
        self.change = change


def _scheduler_id_in(connection: apsw.Connection, new_id: str) -> str:
    def change(connection: apsw.Connection) -> None:
        connection.execute(
            "INSERT INTO scheduler SELECT ? WHERE NOT EXISTS (SELECT * FROM scheduler)", (new_id,)
        )

    in_transaction(change, connection)
    return str(connection.execute("SELECT id FROM scheduler").get)


_REASONS: Reasons = (
    (apsw.FullError, "the disk is full; free some space and writing resumes by itself"),
    (apsw.ReadOnlyError, "is read-only; make the file and its directory writable"),
    (apsw.BusyError, "is locked by another program; it is tried again"),
    (apsw.LockedError, "is locked; it is tried again"),
    (apsw.NotADBError, "is not a SQLite database; choose another path, or restore the store from a copy"),
    (apsw.CantOpenError, "cannot be opened; is it a file, and is its directory there and writable?"),
    (apsw.IOError, "cannot be read or written (input/output error); look at the disk"),
)
