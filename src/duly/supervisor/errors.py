"""What the supervisor refuses to do, and why."""

from enum import StrEnum

from duly.errors import SchedulerError


class Refused(StrEnum):
    """Why a service was not started or stopped."""

    UNKNOWN = "unknown"
    DISABLED = "disabled"
    ACTIVE = "active"
    STOPPING = "stopping"
    RELOADING = "reloading"
    NOT_ONESHOT = "not-oneshot"
    UNKILLABLE = "unkillable"
    ELSEWHERE = "elsewhere"


_SENTENCES = {
    Refused.UNKNOWN: 'There is no service "{}"; `duly services` lists them',
    Refused.DISABLED: 'Service "{}" is disabled; set enabled = true in the configuration and reload',
    Refused.ACTIVE: 'Service "{}" is active already; stop it first, or wait for its end',
    Refused.STOPPING: 'Service "{}" is left as it is: the supervisor is stopping',
    Refused.RELOADING: 'Service "{}" is being reloaded; try again in a moment',
    Refused.NOT_ONESHOT: 'Service "{}" is a simple service; only a oneshot can be run to its end',
    Refused.UNKILLABLE: 'Service "{}" has a process that was killed and lives on; see what it waits for',
    Refused.ELSEWHERE: (
        'Service "{}" runs under another daemon, whose store this is a copy of; stop it there, '
        "or give this daemon a store of its own"
    ),
}


class ServiceError(SchedulerError):
    """The supervisor does not do what was asked of one service; `kind` says why."""

    def __init__(self, kind: Refused, service: str) -> None:
        super().__init__(_SENTENCES[kind].format(service), {"kind": kind.value, "service": service})
        self.kind = kind
        self.service = service


class SupervisorStoppingError(SchedulerError):
    """A start or a reload came after a stop."""

    def __init__(self) -> None:
        super().__init__("The supervisor is stopping; start a new one")
