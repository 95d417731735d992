"""The OpenAPI 3.1 document of the API, made from the table of operations and the types of their results."""

from collections.abc import Mapping, Sequence
from itertools import chain
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from duly import __version__
from duly.daemon.operations import Operation, Params

_REF = "#/components/schemas/{name}"
_ERRORS = {
    "400": "The request cannot be understood.",
    "401": "Nobody is logged in, and no token came with it.",
    "403": "Not allowed: by role, by origin, by session token, or because the site is read-only.",
    "404": "There is nothing by that name.",
    "405": "Not this method.",
    "409": "It was refused or failed, as the message says.",
    "413": "The body is too large.",
    "429": "Too many wrong tokens.",
    "503": "Not now; try again.",
}


class Failure(msgspec.Struct):
    """What is wrong: a code for machines, and a sentence for people."""

    code: str
    message: str


class Failed(msgspec.Struct):
    """An error."""

    error: Failure


class Reading(NamedTuple):
    """Something to GET that is no operation."""

    name: str
    path: str
    summary: str
    result: type
    parts: tuple[str, ...] = ()
    """What stands in braces in its path."""


def document(operations: Mapping[str, Operation], readings: Sequence[Reading] = ()) -> bytes:
    """The document, as JSON."""
    results = {name: _kinds(get_type_hints(each.function)["return"]) for name, each in operations.items()}
    results |= {each.name: (each.result,) for each in readings}
    bodies = {each.params for each in operations.values() if not each.is_read}
    kinds = list(dict.fromkeys([*chain(*results.values()), *sorted(bodies, key=str), Failed]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    of: dict[Any, Any] = dict(zip(kinds, schemas, strict=True))
    of |= {name: _any([of[kind] for kind in kinds]) for name, kinds in results.items()}
    paths: dict[str, Any] = {}
    for name, operation in operations.items():
        paths[f"/api/v1/{name}"] = _path(name, operation, of)
        if operation.stream is not None:
            paths[f"/api/v1/{name}/stream"] = _stream_path(name, operation, of)
    for reading in readings:
        paths[reading.path] = _reading_path(reading, of)
    paths["/api/v1/events"] = _events_path(of)
    return msgspec.json.encode({
        "openapi": "3.1.0",
        "info": {
            "title": "duly",
            "version": __version__,
            "description": "GET reads, POST acts. A POST needs a bearer token; or, where there are no tokens,"
            " the cookie of /api/v1/session and its csrf in the header X-CSRF-Token.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    })  # fmt: skip


def _kinds(result: Any) -> tuple[Any, ...]:
    """The types that a result may be of."""
    return get_args(result) if isinstance(result, UnionType) else (result,)


def _any(schemas: list[Any]) -> Any:
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _path(name: str, operation: Operation, of: Mapping[Any, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": name,
        "summary": _summary(operation),
        "responses": _responses(of, {"application/json": {"schema": of[name]}}),
    }
    if operation.is_read:
        told["parameters"] = _parameters(operation.params)
        return {"get": told}
    needs = any(field.required for field in msgspec.structs.fields(operation.params))
    told["requestBody"] = {
        "required": needs,
        "content": {"application/json": {"schema": of[operation.params]}},
    }
    return {"post": told}


def _reading_path(reading: Reading, of: Mapping[Any, Any]) -> dict[str, Any]:
    told = {
        "operationId": reading.name,
        "summary": reading.summary,
        "parameters": [
            {"name": part, "in": "path", "required": True, "schema": {"type": "string"}}
            for part in reading.parts
        ],
        "responses": _responses(of, {"application/json": {"schema": of[reading.name]}}),
    }
    return {"get": told}


def _stream_path(name: str, operation: Operation, of: Mapping[Any, Any]) -> dict[str, Any]:
    told = {
        "operationId": f"{name}_stream",
        "summary": f"{_summary(operation)} As it comes: events log, piece, end.",
        "parameters": _parameters(operation.params),
        "responses": _responses(of, {"text/event-stream": {"schema": {"type": "string"}}}),
    }
    return {"get": told}


def _events_path(of: Mapping[Any, Any]) -> dict[str, Any]:
    last = {"name": "last_event_id", "in": "query", "required": False, "schema": {"type": "string"}}
    brief = {"name": "brief", "in": "query", "required": False, "schema": {"type": "boolean"}}
    told = {
        "operationId": "events",
        "summary": "What happens, as it happens; `reset` when what happened meanwhile is no longer known."
        " In brief: only how many events there were, and the id of the last.",
        "parameters": [last, brief],
        "responses": _responses(of, {"text/event-stream": {"schema": {"type": "string"}}}),
    }
    return {"get": told}


def _responses(of: Mapping[Any, Any], good: Mapping[str, Any]) -> dict[str, Any]:
    bad = {"application/json": {"schema": of[Failed]}}
    return {
        "200": {"description": "As asked.", "content": good},
        **{status: {"description": words, "content": bad} for status, words in _ERRORS.items()},
    }


def _parameters(params: type[Params]) -> list[dict[str, Any]]:
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": _plain(msgspec.json.schema(field.type)),
        }
        for field in msgspec.structs.fields(params)
    ]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without null: a parameter that is not there is left out."""
    kinds = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else schema


def _summary(operation: Operation) -> str:
    return (operation.params.__doc__ or "").strip().partition("\n")[0]
