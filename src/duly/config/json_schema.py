"""The schema of a TOML file as JSON Schema, for editors that complete and check while one types.

It is made from the tables of checkers that `duly check` uses, so it has every key that they have. It says of
what type a value is, and which words or numbers are allowed; what only a checker can tell is left to it.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from duly.config import values
from duly.config.calendars import CALENDAR_FIELDS, DAY
from duly.config.checking import (
    DASHBOARD_VALUES,
    NOTIFY_KEYS,
    NOTIFY_VALUES,
    SERVICE_KEYS,
    SERVICE_VALUES,
    SETTING_VALUES,
    TIMER_KEYS,
    TIMER_VALUES,
    Checker,
    written_names,
)
from duly.config.jobs import DEFAULT_KEYS, NOT_OF_JOBS

JsonSchema = dict[str, Any]

_TEXT: JsonSchema = {"type": "string"}
_LENGTH: JsonSchema = {"type": ["number", "string"], "description": 'seconds, or a text such as "5m"'}
_TEXTS: JsonSchema = {"type": "array", "items": _TEXT}
_FIELD: JsonSchema = {"type": ["integer", "string", "array"]}
_CALENDAR: JsonSchema = {
    "type": "object",
    "properties": dict.fromkeys((*CALENDAR_FIELDS, DAY), _FIELD),
    "additionalProperties": False,
}
_OF_CHECKERS: Mapping[Any, JsonSchema] = {
    values.boolean: {"type": "boolean"},
    values.seconds: _LENGTH,
    values.every: _LENGTH,
    values.days: {"type": "number"},
    values.intervals: {"type": "array", "items": _LENGTH},
    values.names: _TEXTS,
    values.hosts: _TEXTS,
    values.networks: _TEXTS,
    values.patterns: {"type": ["string", "array"], "items": _TEXT},
    values.argv: {"type": ["string", "array"], "items": _TEXT},
    values.environment: {"type": "object", "additionalProperties": _TEXT},
    values.account: {"type": ["string", "integer"]},
    values.size: {"type": ["integer", "string"], "description": 'bytes, or a text such as "512M"'},
    **dict.fromkeys((values.text, values.path_text, values.zone, values.identifier, values.umask), _TEXT),
    **dict.fromkeys((values.ping_url, values.listen, values.store), _TEXT),
}
"""Of any other checker nothing is said: a schema must not refuse what duly takes."""
_OF_KEYS: Mapping[str, JsonSchema] = {
    **dict.fromkeys(("id", "target", "cron", "daily"), _TEXT),
    "command": _OF_CHECKERS[values.argv],
    "shell": _OF_CHECKERS[values.boolean],
    "restart": {"enum": ["always", "on-failure", "no", True, False]},
    "on_calendar": {"anyOf": [_CALENDAR, {"type": "array", "items": _CALENDAR}]},
    "lease_sec": _LENGTH,
}
"""Keys whose checker says nothing of their type."""


def json_schema() -> JsonSchema:
    """The schema of a whole file."""
    service, timer = _properties(SERVICE_KEYS, SERVICE_VALUES), _properties(TIMER_KEYS, TIMER_VALUES)
    both = {**service, **timer}
    job = {name: each for name, each in both.items() if name not in NOT_OF_JOBS}
    shared = {name: both[name] for name in written_names(DEFAULT_KEYS)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "duly",
        **_table(
            {
                "supervisor": _table(_properties(SETTING_VALUES, SETTING_VALUES)),
                "dashboard": _table(_properties(DASHBOARD_VALUES, DASHBOARD_VALUES)),
                "defaults": _table(shared),
                "job": _list_of(job, "id", "command"),
                "service": _list_of(service, "id", "command"),
                "timer": _list_of(timer, "id", "target"),
                "notify": _list_of(_properties(NOTIFY_KEYS, NOTIFY_VALUES), "id"),
            }
        ),
    }


def _table(properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _list_of(properties: JsonSchema, *required: str) -> JsonSchema:
    return {"type": "array", "items": {**_table(properties), "required": list(required)}}


def _properties(keys: Iterable[str], checkers: Mapping[str, Checker]) -> JsonSchema:
    return {name: _value(key, checkers.get(key)) for key in keys for name in written_names((key,))}


def _value(key: str, checker: Checker | None) -> JsonSchema:
    if key in _OF_KEYS:
        return _OF_KEYS[key]
    if not isinstance(checker, partial):
        return _OF_CHECKERS.get(checker, {})
    given = checker.keywords
    if checker.func is values.choice:
        return {"enum": list(given["allowed"])}
    if checker.func is values.whole_number:
        return {"type": "integer", "minimum": given["lowest"], "maximum": given["highest"]}
    return _OF_CHECKERS.get(checker.func, {})
