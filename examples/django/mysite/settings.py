"""The smallest settings that have sessions in a database."""

from pathlib import Path

BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = "not a secret: this is an example"  # noqa: S105 (it says so)
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["django.contrib.sessions", "duly.integrations.django", "housekeeping"]
ROOT_URLCONF = "mysite.urls"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}
TIME_ZONE = "Europe/Berlin"
USE_TZ = True

DULY = {"store": BASE_DIR / "jobs.db"}
