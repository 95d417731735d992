"""What pages and API share: operations of a daemon, controls of an App, and refusals as responses."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response

from duly.daemon.operations import OPERATIONS, Definitions, Operation, Params, params_for
from duly.daemon.protocol import (
    BAD_REQUEST,
    BUSY,
    DISABLED,
    FAILED,
    INVALID_CONFIGURATION,
    NOT_FOUND,
    UNREACHABLE,
    OperationError,
)
from duly.errors import NoSuchTaskError, SchedulerError, StoreError
from duly.web.security import error_body, json_response
from duly.web.site import READ_ONLY, Site

STATUSES: Mapping[str, int] = {
    BAD_REQUEST: 400,
    READ_ONLY: 403,
    NOT_FOUND: 404,
    FAILED: 409,
    DISABLED: 409,
    INVALID_CONFIGURATION: 409,
    BUSY: 503,
    UNREACHABLE: 503,
}
"""The status for each code of an error."""


async def act(site: Site, name: str, target: str, who: str) -> int | None:
    """Do something to a service, a timer or a task; the run that it began, if that is known.

    Raises OperationError.
    """
    if site.tasks is None:
        operation = OPERATIONS[name]
        done = await perform(site, operation, params_for(operation, {"id": target}), who)
        run: int | None = done.run
        return run
    if site.act is None:
        raise OperationError(READ_ONLY, "this site can only be looked at")
    try:
        await site.act(name, target, who)
    except NoSuchTaskError as error:
        raise OperationError(NOT_FOUND, error.message) from error
    except StoreError as error:
        raise OperationError(BUSY, error.message) from error
    except (SchedulerError, RuntimeError) as error:
        message = error.message if isinstance(error, SchedulerError) else str(error)
        raise OperationError(FAILED, message) from error
    return None


async def perform(site: Site, operation: Operation, params: Params, who: str) -> Any:
    """Do an operation of a daemon. Raises OperationError."""
    if site.tasks is not None and not operation.is_read:
        message = (
            "this site can only be looked at" if site.is_read_only else "this is for daemons, not for tasks"
        )
        raise OperationError(READ_ONLY, message)
    try:
        return _public_result(await operation.function(site.backend, params, who))
    except StoreError as error:
        raise OperationError(BUSY, error.message) from error
    except SchedulerError as error:
        raise OperationError(FAILED, error.message) from error


def _public_result(result: Any) -> Any:
    """The result as anybody may see it: of an environment the names."""
    if not isinstance(result, Definitions):
        return result
    services = [
        {key: sorted(value) if key == "env" else value for key, value in declared.items()}
        for declared in result.services
    ]
    return msgspec.structs.replace(result, services=services)


def refusal(error: OperationError) -> Response:
    """The response to an operation that was refused: its code and its sentence, no other facts."""
    return json_response(error_body(error.code, error.message), STATUSES.get(error.code, 409))
