"""The OpenAPI 3.1 document of the API, made from the table of operations and the types of their results."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from inspect import cleandoc, getsource
from itertools import chain, pairwise
from textwrap import dedent
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
    "414": "The address is too long.",
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


class OtherRoute(NamedTuple):
    """Something to GET, or to POST, that is no operation."""

    name: str
    path: str
    summary: str
    result: type
    parts: tuple[str, ...] = ()
    """What stands in braces in its path."""
    is_read: bool = True


def document(operations: Mapping[str, Operation], routes: Sequence[OtherRoute] = ()) -> bytes:
    results = {name: get_type_hints(each.function)["return"] for name, each in operations.items()}
    results |= {each.name: each.result for each in routes}
    kinds_of = {  # a result may be of several types
        name: get_args(result) if isinstance(result, UnionType) else (result,)
        for name, result in results.items()
    }
    bodies = {each.params for each in operations.values() if not each.is_read}
    kinds = list(dict.fromkeys([*chain(*kinds_of.values()), *sorted(bodies, key=str), Failed]))
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    _describe_fields(components)
    of: dict[Any, Any] = dict(zip(kinds, schemas, strict=True))
    for name, some in kinds_of.items():
        of[name] = of[some[0]] if len(some) == 1 else {"anyOf": [of[kind] for kind in some]}
    paths: dict[str, Any] = {}
    for name, operation in operations.items():
        summary, parameters = operation.summary, _parameters(operation.params)
        method = _get(name, summary, parameters, of, schema=of[name], description=_words(operation.params))
        paths[f"/api/v1/{name}"] = method if operation.is_read else _post(name, summary, operation, of)
        if operation.stream is not None:
            as_it_comes = f"{summary} As it comes: events log, piece, end."
            paths[f"/api/v1/{name}/stream"] = _get(f"{name}_stream", as_it_comes, parameters, of)
    for route in routes:
        parts = [_parameter(part, {"type": "string"}, where="path", is_required=True) for part in route.parts]
        method = _get(route.name, route.summary, parts, of, schema=of[route.name])
        paths[route.path] = method if route.is_read else {"post": method["get"]}
    paths["/api/v1/events"] = _get("events", _EVENTS, _EVENTS_PARAMETERS, of)
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


def _post(name: str, summary: str, operation: Operation, of: Mapping[Any, Any]) -> dict[str, Any]:
    needs = any(field.required for field in msgspec.structs.fields(operation.params))
    posted = {
        "operationId": name,
        "summary": summary,
        "description": _words(operation.params),
        "responses": _responses(of, {"application/json": {"schema": of[name]}}),
        "requestBody": {"required": needs, "content": {"application/json": {"schema": of[operation.params]}}},
    }
    return {"post": posted}


def _get(
    name: str,
    summary: str,
    parameters: list[dict[str, Any]],
    of: Mapping[Any, Any],
    *,
    schema: Any = None,
    description: str = "",
) -> dict[str, Any]:
    """Something to GET: JSON of a *schema*, or without one a stream."""
    kind = "application/json" if schema else "text/event-stream"
    described = {
        "operationId": name,
        "summary": summary,
        "description": description,
        "parameters": parameters,
        "responses": _responses(of, {kind: {"schema": schema or {"type": "string"}}}),
    }
    return {"get": described}


def _responses(of: Mapping[Any, Any], good: Mapping[str, Any]) -> dict[str, Any]:
    bad = {"application/json": {"schema": of[Failed]}}
    return {
        "200": {"description": "As asked.", "content": good},
        **{status: {"description": words, "content": bad} for status, words in _ERRORS.items()},
    }


def _parameter(name: str, schema: Any, *, where: str = "query", is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": is_required, "schema": schema}


def _parameters(params: type[Params]) -> list[dict[str, Any]]:
    words = _field_words(params)
    return [
        _parameter(field.encode_name, _plain(msgspec.json.schema(field.type)), is_required=field.required)
        | ({"description": said} if (said := words.get(field.name)) else {})
        for field in msgspec.structs.fields(params)
    ]


# --- what the code says of its fields ---


def _words(params: type[Params]) -> str:
    """What is said of the parameters of an operation; nothing if it has none."""
    return cleandoc(params.__doc__ or "") if msgspec.structs.fields(params) else ""


def _describe_fields(components: Mapping[str, Any]) -> None:
    """Write into schemas what the source says below the fields of their types."""
    for kind in _kinds_below(msgspec.Struct):
        properties = components.get(kind.__name__, {}).get("properties", {})
        for name, words in _field_words(kind).items() if properties else ():
            if name in properties:
                properties[name]["description"] = words


def _kinds_below(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for each in below:
        yield each
        yield from _kinds_below(each)


def _field_words(kind: type) -> dict[str, str]:
    """The text below each field of a type, in the source. Empty if there is no source, as in a zip file."""
    try:
        (tree,) = ast.parse(dedent(getsource(kind))).body
    except (OSError, TypeError, SyntaxError):
        return {}
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: cleandoc(text.value.value)
        for field, text in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


_EVENTS = (
    "What happens, as it happens; `reset` when what happened meanwhile is no longer known."
    " In brief: only how many events there were, and the id of the last."
)
_EVENTS_PARAMETERS = [
    _parameter("last_event_id", {"type": "string"}),
    _parameter("brief", {"type": "boolean"}),
]


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema without null: a parameter that is not there is left out."""
    kinds = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    return kinds[0] if len(kinds) == 1 else schema
