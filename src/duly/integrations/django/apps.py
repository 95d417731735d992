"""What `INSTALLED_APPS` finds: it loads the tasks of all applications."""

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules


class DulyConfig(AppConfig):  # type: ignore[misc] # Django has no types
    name = "duly.integrations.django"
    label = "duly"

    def ready(self) -> None:
        autodiscover_modules("tasks")
