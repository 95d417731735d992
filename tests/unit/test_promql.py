"""What Grafana and Prometheus are told to ask for: metrics and labels that there are, in ways that work.

What can be known without Prometheus is checked here. Where its `promtool` is (`apt install prometheus`), it
parses every expression and plays the rules against made-up hours.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families as read_text

from tests.unit.test_metrics import everything, expressions_in, text_of

ADDED = {"instance", "job"}
"""Labels that Prometheus adds to all that it scrapes."""
_SELECTOR = re.compile(r"\b((?:duly|process)_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
_GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
_JOIN = re.compile(r"\S+ on \(([^)]*)\)")
_OF_LABEL = re.compile(r"label_values\(.*,\s*(\w+)\)")
_TEMPLATE = re.compile(r"\$labels\.(\w+)")
_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Asked(NamedTuple):
    """An expression, and the labels that its result is shown by."""

    text: str
    shown: frozenset[str] = frozenset()


def known_labels() -> dict[str, set[str]]:
    """Of every sample there can be its labels."""
    found: dict[str, set[str]] = {}
    for family in read_text(everything().metrics.exposition().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def grafana() -> list[Asked]:
    """Everything that the dashboard asks for."""
    dashboard = json.loads(text_of("grafana.json"))
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    shown = {target["expr"]: frozenset(_LEGEND.findall(target["legendFormat"])) for target in targets}
    texts = [text for text in expressions_in(dashboard) if text != "prometheus"]
    return [Asked(text, shown.get(text, frozenset())) for text in texts]


def rules() -> list[dict[str, Any]]:
    """The rules for alerts."""
    [group] = yaml.safe_load(text_of("alerts.yml"))["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def alerts() -> list[Asked]:
    """Everything that the rules ask for."""
    return [
        Asked(rule["expr"], frozenset(_TEMPLATE.findall(json.dumps(rule["annotations"])))) for rule in rules()
    ]


def mistakes(asked: Asked, known: dict[str, set[str]]) -> Iterator[str]:
    """What in an expression is not there."""
    # Of what is joined `on` some labels the left side keeps its own; the right side must have those.
    left, *joined = _JOIN.split(asked.text)
    there: set[str] | None = None
    for number, part in enumerate([left, *joined[1::2]]):
        labels: set[str] | None = None
        for name, matchers in _SELECTOR.findall(part):
            if name not in known:
                yield f"no metric {name}"
                continue
            own = known[name] | ADDED
            yield from (
                f"{name} has no label {label}" for label in _MATCHER.findall(matchers) if label not in own
            )
            labels = own if labels is None else labels & own
        on = set(re.findall(r"\w+", joined[2 * number - 2])) if number else set()
        yield from (f"no label {label} to join on" for label in on - (labels or set()))
        there = labels if number == 0 else there
    if there is None:
        yield "no metric at all"
        return
    kept = there
    for text in _GROUPING.findall(left):
        grouped = set(re.findall(r"\w+", text))
        yield from (f"no label {label} to group by" for label in grouped - there)
        kept = kept & grouped
    yield from (f"no label {label} to list" for label in set(_OF_LABEL.findall(asked.text)) - there)
    yield from (f"no label {label} is left to show" for label in asked.shown - kept)


@pytest.mark.parametrize("asked", [*grafana(), *alerts()], ids=lambda asked: asked.text[:60])
def test_asks_for_what_there_is(asked: Asked) -> None:
    """Each metric and each label of an expression is one that /metrics has, and so is what is shown of it."""
    assert list(mistakes(asked, known_labels())) == []


@pytest.mark.parametrize(
    ("text", "shown", "mistake"),
    [
        ("sum(duly_run_total)", (), "no metric duly_run_total"),
        ('duly_misses_total{name="x"}', (), "duly_misses_total has no label name"),
        ("sum by (kind) (duly_misses_total)", (), "no label kind to group by"),
        ("sum by (le) (rate(duly_store_write_seconds_sum[5m]))", (), "no label le to group by"),
        ("sum by (timer) (duly_misses_total)", ("reason",), "no label reason is left to show"),
        ("duly_running", ("timer",), "no label timer is left to show"),
        ("label_values(duly_running, timer)", (), "no label timer to list"),
        ("duly_running unless on (kind) duly_misses_total", (), "no label kind to join on"),
        ("vector(0)", (), "no metric at all"),
    ],
)
def test_mistakes_are_found(text: str, shown: tuple[str, ...], mistake: str) -> None:
    """A metric or a label that is not there is found wherever it stands."""
    assert list(mistakes(Asked(text, frozenset(shown)), known_labels()))[:1] == [mistake]


# --- with promtool ---

PROMTOOL = shutil.which("promtool")
WITH_PROMTOOL = pytest.mark.skipif(
    PROMTOOL is None, reason="there is no promtool here: apt install prometheus"
)


def promtool(*words: str) -> str:
    """What promtool says; it must not object."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def filled(text: str) -> str:
    """An expression of the dashboard with its variables as Grafana fills them in."""
    for name, value in {"$__rate_interval": "5m", "$kind": ".*", "$name": ".*"}.items():
        text = text.replace(name, value)
    assert "$" not in text
    return text


@pytest.mark.heavy
@WITH_PROMTOOL
def test_prometheus_takes_every_expression(tmp_path: Path) -> None:
    """Prometheus itself parses the rules, and every expression of the dashboard."""
    (tmp_path / "alerts.yml").write_text(text_of("alerts.yml"))
    assert f"{len(rules())} rules found" in promtool("check", "rules", str(tmp_path / "alerts.yml"))
    texts = [filled(asked.text) for asked in grafana() if "label_values" not in asked.text]
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(texts)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": recorded}]}))
    assert f"{len(texts)} rules found" in promtool("check", "rules", str(tmp_path / "panels.yml"))


TASK = 'kind="service", name="backup", instance="i"'
SUCCESS = f"duly_last_success_timestamp_seconds{{{TASK}}}"
INTERVAL = f"duly_expected_interval_seconds{{{TASK}}}"
DUE = f"duly_next_due_timestamp_seconds{{{TASK}}}"
MONTH = 31 * 86_400
BEGUN = {'duly_start_time_seconds{instance="i"}': "0x1500"}
MISS = 'duly_misses_total{timer="t", reason="%s", instance="i"}'
RUNS = f'duly_runs_total{{{TASK}, timer="t", reason="schedule", result="%s"}}'
BUCKET = 'duly_store_write_seconds_bucket{instance="i", le="%s"}'
HERE = {"series": 'duly_build_info{instance="i"}', "values": "1x240"}


def play(folder: Path, given: list[dict[str, str]], expected: Sequence[tuple[str, str, float]]) -> None:
    """Have Prometheus work out expressions, by the rules, each at a time into made-up series."""
    asked = [
        {"expr": expr, "eval_time": at, "exp_samples": [{"value": value, "labels": "{}"}]}
        for expr, at, value in expected
    ]
    test = {"interval": "1m", "input_series": given, "promql_expr_test": asked}
    whole = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "alerts.yml").write_text(text_of("alerts.yml"))
    (folder / "test.yml").write_text(yaml.safe_dump(whole))
    promtool("test", "rules", str(folder / "test.yml"))


@pytest.mark.heavy
@WITH_PROMTOOL
@pytest.mark.parametrize(
    ("series", "alert", "quiet_at", "loud_at"),
    [
        ({'duly_build_info{instance="i"}': "1x30 _x200"}, "DulyGone", "29m", "45m"),
        (
            {'duly_violations_total{property="S1", instance="i"}': "_x20 1x200"},
            "DulyPropertyViolated",
            "19m",
            "21m",
        ),
        ({'duly_store_faulty{instance="i"}': "0x20 1x200"}, "DulyStoreFault", "21m", "23m"),
        ({MISS % "overlap": "_x100 1x100"}, "DulyMissedRun", "99m", "101m"),
        ({MISS % "target-not-found": "2x100 3x100"}, "DulyMissedRun", "99m", "102m"),
        # Prometheus begins at 0: 600 s is the tenth minute.
        ({DUE: "600x100"}, "DulyDuePassed", "19m", "21m"),
        ({SUCCESS: "0x200", INTERVAL: "3600x200", **BEGUN}, "DulyNoSuccess", "99m", "101m"),
        ({INTERVAL: "3600x200", **BEGUN}, "DulyNoSuccess", "99m", "101m"),
        ({SUCCESS: f"{-1.5 * MONTH}x200", INTERVAL: f"{MONTH}x200"}, "DulyNoSuccess", "9m", "11m"),
        ({f'duly_health{{{TASK}, state="hung"}}': "_x10 1x100"}, "DulyNotWell", "14m", "16m"),
        ({'duly_service_up{name="web", instance="i"}': "1x10 0x100"}, "DulyServiceDown", "20m", "22m"),
        ({'duly_reload_failed{instance="i"}': "0x10 1x100"}, "DulyReloadFailed", "15m", "17m"),
        ({'duly_invalid_entries{instance="i"}': "0x10 1x100"}, "DulyInvalidEntries", "25m", "27m"),
        ({'duly_heartbeat_age_seconds{instance="i"}': "1x10 9x100"}, "DulyHeartbeatLate", "11m", "13m"),
        ({'duly_claim_lag_seconds{instance="i"}': "1x10 99x100"}, "DulyClaimsLate", "15m", "17m"),
        ({RUNS % "exit": "_x100 1x100"}, "DulyRunsFail", "99m", "101m"),
        ({RUNS % "exit": "_x100 1x100", INTERVAL: f"{MONTH}x200"}, "DulyRunsFail", "99m", "101m"),
        ({RUNS % "exit": "_x100 1 2 3x100", INTERVAL: "60x300"}, "DulyRunsFail", "101m", "103m"),
        ({RUNS % "exit": "7x100 8 9 10x100", INTERVAL: "60x300"}, "DulyRunsFail", "101m", "105m"),
        (
            {BUCKET % "1": "0x20 0x200", BUCKET % "5": "0x20 60+60x200", BUCKET % "+Inf": "0x20 60+60x200"},
            "DulySlowStore",
            "15m",
            "50m",
        ),
    ],
)
def test_alerts_come_when_they_should(
    series: dict[str, str], alert: str, quiet_at: str, loud_at: str, tmp_path: Path
) -> None:
    """An alert is quiet until its time and then stands, also for the first of its kind."""
    given = [{"series": name, "values": values} for name, values in series.items()]
    given += [] if alert == "DulyGone" else [HERE]
    expr = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    play(tmp_path, given, [(expr, quiet_at, 0), (expr, loud_at, 1)])


CALM: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "monthly, well": ({SUCCESS: "0x1500", INTERVAL: f"{MONTH}x1500"}, ("1h", "1d")),
    "monthly, late by an hour": (
        {SUCCESS: f"-{MONTH - 3600}x1500", INTERVAL: f"{MONTH}x1500"},
        ("2h", "1d"),
    ),
    "ran once, well": ({SUCCESS: "0x1500", f"duly_last_result{{{TASK}}}": "1x1500", **BEGUN}, ("1h", "1d")),
    "runs once, then well": ({RUNS % "success": "0x60 1x1400", SUCCESS: "_x60 3600x1400"}, ("2h", "1d")),
    "ran once, failed": (
        {RUNS % "exit": "0x60 1x1400", f"duly_last_result{{{TASK}}}": "_x60 0x1400"},
        ("130m", "1d"),
    ),
    "monthly, failed": (
        {RUNS % "exit": "0x60 1x1400", INTERVAL: f"{MONTH}x1500", SUCCESS: "0x1500"},
        ("130m", "1d"),
    ),
    "monthly, due ahead": (
        {DUE: f"{MONTH}x1500", INTERVAL: f"{MONTH}x1500", SUCCESS: "0x1500"},
        ("1h", "1d"),
    ),
    "due while it runs": ({DUE: "600x1500", f"duly_running{{{TASK}}}": "1x1500"}, ("2h", "1d")),
}


@pytest.mark.heavy
@WITH_PROMTOOL
def test_alerts_end(tmp_path: Path) -> None:
    """What runs once or each month raises no alert while it is well, and none for ever once it failed."""
    given, asked = [], []
    # Each case is an instance of its own: Prometheus goes through the minutes of a day once for all.
    for instance, (series, times) in CALM.items():
        named = {**series, HERE["series"]: "1x1500"}
        own = f'instance="{instance}"'
        given += [
            {"series": name.replace('instance="i"', own), "values": text} for name, text in named.items()
        ]
        asked += [(f'count(ALERTS{{alertstate="firing", {own}}}) or vector(0)', at, 0) for at in times]
    play(tmp_path, given, asked)


@pytest.mark.heavy
@WITH_PROMTOOL
@pytest.mark.parametrize(
    ("title", "series", "value"),
    [
        ("Missed, last 24 h", {MISS % "overlap": "_x100 1x20"}, 1),
        ("Missed, last 24 h", {MISS % "overlap": "_x100 1x20", MISS % "shutdown": "_x50 1x20 2x50"}, 3),
        ("Missed, last 24 h", {}, 0),
        ("Failed runs, last hour", {RUNS % "exit": "_x100 1x20", RUNS % "success": "_x90 1x30"}, 1),
        ("Failed runs, last hour", {RUNS % "exit": "5x200"}, 0),
    ],
)
def test_numbers_of_the_dashboard(title: str, series: dict[str, str], value: float, tmp_path: Path) -> None:
    """What is counted in a panel counts from the first of its kind on, and is 0 where there is none."""
    panels = {panel["title"]: panel for panel in json.loads(text_of("grafana.json"))["panels"]}
    given = [{"series": name, "values": values} for name, values in series.items()]
    (target,) = panels[title]["targets"]
    play(tmp_path, [*given, HERE], [(filled(target["expr"]), "110m", value)])
