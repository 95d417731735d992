"""The page /api/v1/docs: the OpenAPI document for people. Made of that document alone, once."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from duly.web.rendering import made_of_template

_PREFIX = "#/components/schemas/"
_KINDS = {"integer": "whole number", "string": "text", "boolean": "true or false", "date-time": "time"}


class ApiField(NamedTuple):
    """A parameter of an operation, or a key of an object."""

    name: str
    kind: str
    """What it holds, in words."""
    type_name: str
    """The type of the page that says more; empty if there is none."""
    is_required: bool
    default: str
    description: str


class Described(NamedTuple):
    """An operation."""

    method: str
    path: str
    summary: str
    description: str
    fields: list[ApiField]
    answers: list[ApiField]
    """What it answers with, a line for each type that may come."""
    example: str


class Shape(NamedTuple):
    """A type of objects."""

    name: str
    description: str
    fields: list[ApiField]


def page(document: Mapping[str, Any]) -> bytes:
    """The page of a document."""
    schemas = document["components"]["schemas"]
    operations = [
        _described(method, path, operation, schemas)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    values = {
        "info": document["info"],
        "groups": (
            ("Reading", [each for each in operations if each.method == "GET"]),
            ("Acting", [each for each in operations if each.method == "POST"]),
        ),
        "shapes": [
            Shape(name, schema.get("description", ""), list(_fields(schema)))
            for name, schema in sorted(schemas.items())
            if "properties" in schema
        ],
    }
    return made_of_template("api.html", values).encode()


def _described(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Described:
    fields = [
        _field(
            each["name"], each["schema"], is_required=each["required"], description=each.get("description")
        )
        for each in operation.get("parameters", ())
    ]
    if "requestBody" in operation:
        sent_as = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        fields = list(_fields(schemas[sent_as.removeprefix(_PREFIX)]))
    ((_, answer),) = operation["responses"]["200"]["content"].items()
    kinds = answer["schema"].get("anyOf", [answer["schema"]])
    needed = [field.name for field in fields if field.is_required]
    if method == "post":
        body = ", ".join(f'"{name}": ...' for name in needed)
        sent = f" -d '{{{body}}}'"
        example = f"curl -H 'Content-Type: application/json' -X POST http://127.0.0.1:8787{path}{sent}"
    else:
        query = "?" + "&".join(f"{name}=..." for name in needed) if needed else ""
        example = f"curl 'http://127.0.0.1:8787{path}{query}'"
    return Described(
        method.upper(),
        path,
        operation["summary"],
        operation.get("description", ""),
        fields,
        [_field("", kind, is_required=True) for kind in kinds],
        example,
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[ApiField]:
    needed = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        yield _field(name, each, is_required=name in needed, description=each.get("description"))


def _field(
    name: str, schema: Mapping[str, Any], *, is_required: bool, description: str | None = None
) -> ApiField:
    kind, type_name = _kind(schema)
    default = schema.get("default")
    shown = "" if default is None or default == [] else str(default).lower()
    return ApiField(name, kind, type_name, is_required, shown, description or "")


def _kind(schema: Mapping[str, Any]) -> tuple[str, str]:
    """What a schema holds, in words; and the name of a type that is in it."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(_PREFIX)
        return name, name
    if "anyOf" in schema:
        kinds = [_kind(each) for each in schema["anyOf"] if each.get("type") != "null"]
        is_optional = len(kinds) < len(schema["anyOf"])
        words = " or ".join(dict.fromkeys(words for words, _ in kinds))
        return words + (" or null" if is_optional else ""), next((name for _, name in kinds if name), "")
    if schema.get("type") == "array":
        item, name = _kind(schema.get("items", {}))
        return f"list of {item}", name
    if schema.get("type") == "object" and isinstance(inner := schema.get("additionalProperties"), Mapping):
        value, name = _kind(inner)
        return f"object of {value}", name
    kind = str(schema.get("format", schema.get("type", "anything")))
    return _KINDS.get(kind, kind), ""
