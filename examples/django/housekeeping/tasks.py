"""The tasks of this application; `duly.integrations.django` finds them."""

import os

from django.contrib.sessions.models import Session
from django.core.management import call_command

from duly import Run, every
from duly.integrations.django import jobs


@jobs.task(every("1s"))
def clear_sessions() -> None:
    call_command("clearsessions")
    print(f"{os.getpid()} cleared, {Session.objects.count()} sessions are left", flush=True)


@jobs.task(every("1h"))
def send_report(run: Run) -> None:
    print(f"{os.getpid()} sent a report: {run.cause}", flush=True)
