"""Options of a process besides its command: variables of a file, an account, a niceness and limits.

What the host does not allow is an `OptionFault`, found before a process is made: `duly check` reports it
beforehand. Python runs nothing of ours between fork and exec, so each option takes the way that is safe in a
program with threads:

- user, group and umask are set by `subprocess`, in C. A fork takes the place of the vfork then: about 1 ms
  more of processor time.
- nice is that of the thread that makes the process. On Linux a child inherits it; the thread ends.
- Limits are set by a shell that becomes the program: about 0.5 ms more. They hold from its first instant on.
"""

import grp
import os
import pwd
import re
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import NamedTuple

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.DOTALL)
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """The names are those of the keys of a service."""

    env_file: str | None = None
    """With a "-" before it, it may be missing."""
    user: str | None = None
    group: str | None = None
    umask: str | None = None
    nice: int | None = None
    memory_max: int | None = None
    """In bytes."""
    nofile: int | None = None

    @property
    def may_wait(self) -> bool:
        """Whether a disk or a directory of users is asked, or the thread itself is changed."""
        return any(value is not None for value in (self.env_file, self.user, self.group, self.nice))

    @property
    def has_limits(self) -> bool:
        return self.memory_max is not None or self.nofile is not None


PLAIN = ProcessOptions()
OPTION_KEYS = tuple(each.name for each in fields(ProcessOptions))
_values = attrgetter(*OPTION_KEYS)


def options_of(service: object) -> ProcessOptions:
    """The options of whatever has keys of these names."""
    return ProcessOptions(*_values(service))


class OptionFault(Exception):  # noqa: N818 (of a file, not of ours)
    """An option that this host or this daemon cannot give to a process: the key, and why."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


class ProcessAccount(NamedTuple):
    """Who a process runs as."""

    uid: int | None
    gid: int
    groups: list[int]
    variables: dict[str, str]


def option_faults(options: ProcessOptions) -> Iterator[OptionFault]:
    """Everything in *options* that would keep a process from being made now."""
    for check in (file_variables, account_of, check_limits, check_nice):
        try:
            check(options)
        except OptionFault as fault:
            yield fault


def file_variables(options: ProcessOptions) -> dict[str, str]:
    """The variables of its file. Raises OptionFault, which shows no value."""
    if options.env_file is None:
        return {}
    path = options.env_file.removeprefix("-")
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (a path as it was declared)
            text = os.fsdecode(file.read(_MOST_BYTES))
    except FileNotFoundError:
        if options.env_file.startswith("-"):
            return {}
        raise OptionFault("env_file", f'env_file "{path}" does not exist') from None
    except OSError as error:
        raise OptionFault("env_file", f'env_file "{path}" cannot be read: {error.strerror}') from error
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not (line := line.strip()) or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None or "\0" in line:
            raise OptionFault("env_file", f'env_file "{path}", line {number}: it is not NAME=value')
        name, value = matched.groups()
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[name] = value[1:-1] if is_quoted else value
    return found


def account_of(options: ProcessOptions) -> ProcessAccount | None:
    """Who to become, None for who we are. Raises OptionFault."""
    if options.user is None and options.group is None:
        return None
    uid, gid, name, variables = None, os.getegid(), "", {}
    if options.user is not None:
        user = _entry("user", options.user)
        uid, gid, name = user.pw_uid, user.pw_gid, user.pw_name
        variables = {"USER": name, "LOGNAME": name, "HOME": user.pw_dir}
    if options.group is not None:
        gid = _group_id(options.group)
    is_ours = uid in {None, os.geteuid()} and gid == os.getegid()
    if os.geteuid() != 0:
        if is_ours:
            return None
        key = "group" if uid in {None, os.geteuid()} else "user"
        who = f"the daemon runs as user id {os.geteuid()}, and only root may become another"
        raise OptionFault(key, f'{key} "{getattr(options, key)}" cannot be switched to: {who}')
    return ProcessAccount(uid, gid, os.getgrouplist(name, gid) if name else [gid], variables)


def _entry(key: str, user: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
    except (KeyError, OverflowError):
        raise OptionFault(key, f'there is no user "{user}" on this host') from None


def _group_id(group: str) -> int:
    try:
        return (grp.getgrgid(int(group)) if group.isdecimal() else grp.getgrnam(group)).gr_gid
    except (KeyError, OverflowError):
        raise OptionFault("group", f'there is no group "{group}" on this host') from None


def check_limits(options: ProcessOptions) -> None:
    """Raise OptionFault for a limit that is higher than a process of ours may have."""
    is_root = os.geteuid() == 0 and options.user in {None, "root", "0"}
    for key, number in (("nofile", resource.RLIMIT_NOFILE), ("memory_max", resource.RLIMIT_DATA)):
        wanted, most = getattr(options, key), resource.getrlimit(number)[1]
        if wanted is not None and not is_root and most != resource.RLIM_INFINITY and wanted > most:
            raise OptionFault(key, f"{key} is above the hard limit of the daemon, which is {most}")


def check_nice(options: ProcessOptions) -> None:
    """Raise OptionFault for a niceness that we may not give."""
    if options.nice is None:
        return
    if sys.platform != "linux":
        raise OptionFault("nice", "nice needs Linux, where each thread has its own")
    if options.nice < os.getpriority(os.PRIO_PROCESS, 0) and os.geteuid() != 0:
        raise OptionFault("nice", "only root may lower the niceness")


def limited(argv: tuple[str, ...], options: ProcessOptions) -> tuple[str, ...]:
    """The command that sets the limits, and becomes *argv*."""
    limits = [f"ulimit -n {options.nofile}"] if options.nofile is not None else []
    if options.memory_max is not None:
        limits.append(f"ulimit -d {options.memory_max // 1024}")
    return ("/bin/sh", "-c", f'{" && ".join(limits)} && exec "$@"', "sh", *argv)
