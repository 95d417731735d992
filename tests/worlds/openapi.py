"""What an OpenAPI document promises, tried on a server with random requests (schemathesis).

A test imports this module where it needs it: schemathesis takes half a second to import, in each worker.
"""

from collections.abc import Mapping
from typing import Any

import hypothesis
import jsonschema_rs
import schemathesis
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


def check_document(document: dict[str, Any]) -> None:
    """The document follows OpenAPI 3.1, and each of its schemas is a schema."""
    schemathesis.openapi.from_dict(document).validate()
    for schema in document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


def check_answers(
    document: dict[str, Any], base_url: str, path: str, method: str, headers: Mapping[str, str] | None = None
) -> None:
    """Whatever fits the document, and whatever does not, is answered as the document says."""
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=base_url)
    # A query that is too long is refused for that, whatever else is wrong with it.
    schema.config.checks.negative_data_rejection.expected_statuses.append("414")
    operation = schema[path][method]
    modes = schemathesis.GenerationMode

    for mode in (modes.POSITIVE, modes.NEGATIVE):

        @hypothesis.settings(
            max_examples=25,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def answered(case: Any) -> None:
            case.call_and_validate(headers=headers, checks=CHECKS, timeout=60)

        try:
            answered()
        except hypothesis.errors.Unsatisfiable:
            assert mode is modes.NEGATIVE  # what takes nothing cannot be sent wrongly
