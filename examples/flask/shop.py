"""A Flask application with tasks: a factory, as Flask's documentation recommends it."""

import os

from flask import Flask, current_app

from duly import Run, every
from duly.integrations.flask import FlaskApp

jobs = FlaskApp("jobs.db", standby=True)


@jobs.task(every("1s"))
def fetch_rates() -> None:
    print(f"{os.getpid()} fetched rates from {current_app.config['RATES']}", flush=True)


@jobs.task(every("1h"))
def send_report(run: Run) -> None:
    print(f"{os.getpid()} sent a report: {run.cause}", flush=True)


def create_app() -> Flask:
    app = Flask(__name__)
    app.config["RATES"] = "https://rates.example"
    jobs.init_app(app)

    @app.post("/reports")
    def send_now() -> dict[str, str]:
        jobs.controls.run_now("send_report")
        return {"report": "sent"}

    @app.get("/jobs")
    def show_jobs() -> dict[str, str]:
        return {task.name: task.schedule for task in jobs.controls.tasks()}

    return app
