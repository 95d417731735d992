"""What a server loads: `gunicorn -w 2 wsgi:app`, or `flask --app wsgi run` while developing."""

from shop import create_app, jobs  # type: ignore[import-not-found] # it is beside this file

app = create_app()
jobs.start_in_server()
