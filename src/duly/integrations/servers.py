"""An app in the processes of a web server without an event loop, such as gunicorn with Flask or Django."""

import atexit

from duly.app import App, BackgroundApp
from duly.forks import process_id


class ServerApp(App):
    """An App that a server may run in its processes."""

    controls: BackgroundApp
    """The blocking controls, once a server has started it."""

    def start_in_server(self) -> None:
        """Run in the background until this process ends, which waits for the runs in flight."""
        running, pid = self.background(), process_id()
        self.controls = running.__enter__()

        def end() -> None:
            # A server that loads the program before it forks leaves a copy of this in each worker.
            if process_id() == pid:
                running.__exit__(None, None, None)

        atexit.register(end)
