"""`watch = true`: a change of the configuration's files is a wish to reload.

The files are looked at every two seconds, in a thread. That needs nothing of the host: it works over NFS and
in containers, where inotify reports no change of another host. A look at a file takes microseconds.
Editors and copies write in steps, so a change counts once it has stayed the same for one look. A file that is
refused is read again when it changes again, not at each look.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from duly.clock import Clock, pause
from duly.config.loading import included_files
from duly.config.schema import Config
from duly.daemon.protocol import OperationError
from duly.threads import in_thread

PERIOD_S = 2.0


class FileWatch:
    """Reloads by *reload* when the files of the *config* of that moment change, as long as that says so."""

    def __init__(
        self, config: Callable[[], Config], reload: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        self._config = config
        self._reload = reload
        self._clock = clock
        self._known: object = None

    async def begin(self) -> None:
        """Take the first look: what changes from now on is noticed."""
        self._known = await self._look()

    async def run(self) -> None:
        """Watch until the configuration says that nobody is to."""
        known = before = self._known
        while self._config().settings.watch:
            await pause(self._clock, PERIOD_S)
            now = await self._look()
            if now == before and now != known:
                known = now
                with suppress(OperationError):  # it was reported, and another change is another try
                    await self._reload()
            before = now

    async def _look(self) -> object:
        return await in_thread(partial(files_seen, self._config()))()


def files_seen(config: Config) -> list[tuple[str, int, int, int]]:
    """The files of a configuration that are there now, each with its time of change, size and inode."""
    found = []
    with suppress(OSError, ValueError):  # a folder that cannot be read has no files
        for path in (config.path, *included_files(config.settings, config.path), *config.files):
            if path.exists():
                known = path.stat()
                found.append((str(path), known.st_mtime_ns, known.st_size, known.st_ino))
    return found
