"""Two views that control the tasks."""

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from duly.integrations.django import jobs


def send_now(_request: HttpRequest) -> JsonResponse:
    jobs.controls.run_now("send_report")
    return JsonResponse({"report": "sent"})


def show_jobs(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({task.name: task.schedule for task in jobs.controls.tasks()})


urlpatterns = [path("reports", require_POST(send_now)), path("jobs", show_jobs)]
