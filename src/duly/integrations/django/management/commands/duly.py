"""`manage.py duly`: the tasks in a process of their own."""

from django.core.management.base import BaseCommand

from duly.integrations.django import jobs


class Command(BaseCommand):  # type: ignore[misc] # Django has no types
    help = "Run the tasks until SIGTERM or Ctrl-C. More than one may run: the others stand by."

    def handle(self, *_args: object, **_options: object) -> None:
        jobs.run()
