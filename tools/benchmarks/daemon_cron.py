"""Debian's cron in the benchmark of daemons, in a namespace of its own: nothing of the host is touched.

Its paths are compiled in, so it is shown a table of ours at /etc/cron.d and empty folders at /run and
/var/spool. Without root, apt or namespaces it counts as missing.
"""

import os
import shutil
import subprocess
import time
from pathlib import Path

from tools.benchmarks import host
from tools.benchmarks.case import Case, Numbers

_ENTER = """\
set -e
mount -t tmpfs none /run
mount -t tmpfs none /var/spool
mkdir -p /var/spool/cron/crontabs
mount --bind "$1/pam.d" /etc/pam.d
mount --bind "$1/cron.d" /etc/cron.d
exec "$1/package/usr/sbin/cron" -f
"""


def _burst(case: Case, folder: Path) -> Numbers:
    _unpack(folder)
    started, (minute, due_s) = folder / "started", host.next_minute(10)
    note = host.NOTE.replace("$0", str(started))
    table = (
        f"{minute.tm_min} {minute.tm_hour} * * * root {note.replace('$1', f'job-{i:05}')}\n"
        for i in range(case.n)
    )
    (folder / "cron.d").mkdir()
    (folder / "cron.d" / "bench").write_text("".join(table))
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _ENTER]
    process = subprocess.Popen([*command, "sh", str(folder)], env=os.environ | {"TZ": "UTC"})
    try:
        return host.lags(host.starts(started, case.n), due_s)
    finally:
        process.kill()  # `unshare` ignores TERM; with it goes the namespace and all that is in it
        process.wait()
        time.sleep(0.5)


def _unpack(folder: Path) -> None:
    """Get the package without installing it."""
    try:
        subprocess.run(["unshare", "--mount", "true"], check=True, capture_output=True)
        subprocess.run(["apt-get", "download", "cron"], cwd=folder, check=True, capture_output=True)
        package = next(folder.glob("cron_*.deb"))
        subprocess.run(["dpkg", "-x", package, folder / "package"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        raise ModuleNotFoundError("cron: needs root, apt-get and namespaces") from error
    shutil.copytree("/etc/pam.d", folder / "pam.d")
    shutil.copy(folder / "package" / "etc" / "pam.d" / "cron", folder / "pam.d")


MEASURES = {"burst": _burst}
