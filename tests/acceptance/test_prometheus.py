"""A real Prometheus scrapes a real daemon, and answers every query of the Grafana dashboard."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.acceptance.running import PATIENCE_S, StreamLines, oneshot, service, settings, timer
from tests.acceptance.test_daemon_web import home_of, port_of
from tests.unit.test_metrics import expressions_in, text_of
from tests.unit.test_promql import filled, grafana

PROMETHEUS = shutil.which("prometheus")
TEXT = (
    settings(timers=True, timezone="UTC")
    + service("web", "echo up; exec sleep 1000")
    + service("flapping", "exit 1", restart="always")
    + oneshot("backup", "echo done")
    + oneshot("bad", "exit 3")
    + oneshot("off", "echo never", enabled=False)
    + timer("nightly", "backup", on_startup_sec=0.1, on_calendar={"minute": 0, "hour": 3})
    + timer("first", "bad", on_startup_sec=0.1)
    + timer("disabled", "backup", on_calendar={"minute": 0}, enabled=False)
    + timer("to-off", "off", on_startup_sec=0.1)
)
CONFIG = """
global: {{scrape_interval: 1s}}
rule_files: [alerts.yml]
scrape_configs:
  - {{job_name: duly, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}
"""


class Prometheus:
    """A server that scrapes the daemon at a port."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        with urlopen(f"{self._url}/{path}?{urlencode(query)}", timeout=30) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """What an expression has now: the labels and value of each of its series."""
        data = self.ask("query", query=expr)
        return [(each["metric"], float(each["value"][1])) for each in data["result"]]

    def until(self, expr: str) -> None:
        """Return once an expression has a value."""
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.values(expr):
            assert time.monotonic() < deadline_s, (expr, self.values("up"))
            threading.Event().wait(0.2)  # nothing tells when it has scraped


@contextmanager
def scraping(path: Path, port: int) -> Iterator[Prometheus]:
    assert PROMETHEUS is not None
    (path / "prometheus.yml").write_text(CONFIG.format(port=port))
    (path / "alerts.yml").write_text(text_of("alerts.yml"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    command = [
        PROMETHEUS,
        f"--config.file={path}/prometheus.yml",
        f"--storage.tsdb.path={path}/tsdb",
        f"--web.listen-address=127.0.0.1:{own}",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    said = StreamLines(server.stderr)
    try:
        said.until("Server is ready")
        yield Prometheus(own)
    finally:
        server.terminate()
        server.wait(PATIENCE_S)
        said.join()


@pytest.mark.skipif(PROMETHEUS is None, reason="there is no Prometheus here: apt install prometheus")
def test_prometheus_answers_every_query(tmp_path: Path) -> None:
    """Every panel of the dashboard shows something of a daemon; its rules load, and say what is wrong."""
    with home_of(tmp_path, TEXT).running() as daemon:
        daemon.log.until(r"ServiceRunEnded .*service=bad ")
        daemon.log.until(r"ServiceRunEnded .*service=backup ")
        daemon.log.until(r"TimerMissed .*timer=to-off ")
        daemon.log.until(r"ServiceRestarting .*service=flapping ")
        with scraping(tmp_path, port_of(daemon)) as prometheus:
            prometheus.until("count_over_time(duly_build_info[5m]) > 2")
            panels = {asked.text for asked in grafana() if "label_values" not in asked.text}
            for text in panels:
                assert prometheus.values(filled(text)), text
            listed = {
                text for text in expressions_in(json.loads(text_of("grafana.json"))) if "label_" in text
            }
            assert len(panels) + len(listed) == len(grafana())
            for text in listed:
                selector, _, label = text.removeprefix("label_values(").removesuffix(")").rpartition(", ")
                assert prometheus.ask(f"label/{label}/values", **{"match[]": filled(selector)}), text
            rules = prometheus.ask("rules")["groups"][0]["rules"]
            assert [rule["name"] for rule in rules if rule["health"] == "err"] == []
            up = {labels["name"]: value for labels, value in prometheus.values("duly_service_up")}
            assert (up["web"], set(up)) == (1, {"web", "flapping"})
            results = {labels["name"]: value for labels, value in prometheus.values("duly_last_result")}
            assert (results["backup"], results["bad"]) == (1, 0)
            enabled = {labels["name"]: value for labels, value in prometheus.values("duly_timer_enabled")}
            assert enabled == {"nightly": 1, "first": 1, "disabled": 0, "to-off": 1}
            ((_, in_s),) = prometheus.values('duly_next_due_timestamp_seconds{name="nightly"} - time()')
            assert 0 < in_s <= 86_400
            ((_, interval_s),) = prometheus.values("duly_expected_interval_seconds")
            assert interval_s == 86_400
            assert prometheus.values('duly_restarts_total{name="flapping"} > 0')
