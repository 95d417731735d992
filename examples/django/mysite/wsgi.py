"""What a server loads: `gunicorn -w 2 mysite.wsgi`, or `python manage.py runserver` while developing."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
application = get_wsgi_application()

from duly.integrations.django import jobs  # noqa: E402 (after the settings)

jobs.start_in_server()
