"""Django: one App for all tasks of a project, made from the setting `DULY`.

    INSTALLED_APPS = [..., "duly.integrations.django"]
    DULY = {"store": BASE_DIR / "jobs.db"}              # the arguments of App; the zone is TIME_ZONE

The module `tasks` of each application declares its own, with `from duly.integrations.django import jobs`.
`manage.py duly` runs them. So does a server whose wsgi.py or asgi.py calls `jobs.start_in_server()`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from duly.integrations.servers import ServerApp

if TYPE_CHECKING:
    jobs: "DjangoApp"
    """The one App of the project."""

__all__ = ["DjangoApp", "jobs"]


class DjangoApp(ServerApp):
    """An App whose bodies leave no database connection behind."""

    @contextmanager
    def around(self) -> Iterator[None]:
        from django.db import connections  # noqa: PLC0415 (needs the settings)

        try:
            yield
        finally:
            connections.close_all()  # those of this thread, which ends with the body


def __getattr__(name: str) -> Any:
    if name != "jobs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from django.conf import settings  # noqa: PLC0415 (there are none while INSTALLED_APPS is being read)
    from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 (as above)

    if not hasattr(settings, "DULY"):
        raise ImproperlyConfigured('duly needs a store; write in the settings: DULY = {"store": "jobs.db"}')
    jobs = DjangoApp(**{"timezone": settings.TIME_ZONE, "standby": True, **settings.DULY})
    globals()["jobs"] = jobs
    return jobs
