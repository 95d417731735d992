"""Flask: an App whose bodies run in the application context.

`init_app` starts nothing, so that `flask shell` and other commands do not. The server's wsgi.py calls
`start_in_server`.
"""

import os
from contextlib import AbstractContextManager

from flask import Flask
from flask.helpers import get_debug_flag
from werkzeug.serving import is_running_from_reloader

from duly.integrations.servers import ServerApp

__all__ = ["FlaskApp"]


class FlaskApp(ServerApp):
    """An App for one Flask application; `flask duly` runs it alone, without a server."""

    flask: Flask

    def init_app(self, flask: Flask) -> None:
        """Use the context and the commands of *flask*."""
        self.flask = flask
        flask.extensions["duly"] = self
        flask.cli.command("duly", help="Run the tasks until SIGTERM or Ctrl-C.")(self.run)

    def around(self) -> AbstractContextManager[object]:
        return self.flask.app_context()

    def start_in_server(self) -> None:
        """Run in the background; of `flask run --debug`, only in the process that serves."""
        is_flask_run = os.environ.get("FLASK_RUN_FROM_CLI") == "true"
        if not (is_flask_run and get_debug_flag() and not is_running_from_reloader()):
            super().start_in_server()
