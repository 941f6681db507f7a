"""Errors as problem documents.

Source: RFC 9457. Where a field of the request is at fault, `errors` names it by a JSON pointer
into the body, or by the name of the parameter.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from search_spaces.errors import DamagedRunError, NasError
from service.jobs.database import DatabaseAwayError, DatabaseFullError, full_disk
from service.jobs.states import JobStateError
from service.jobs.submissions import IdempotencyError
from service.uploads import UploadError
from service.wording import for_programs

MEDIA_TYPE = "application/problem+json"
LONGEST_INPUT = 80
LONGEST_FIELD, LONGEST_TEXT = 120, 1500
MOST_ERRORS = 20
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

log = logging.getLogger("service.api.problems")


class FieldError(BaseModel):
    """What is wrong with one field."""

    field: str
    message: str


class ProblemDocument(BaseModel):
    """What every error looks like."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldError] = []


class ProblemResponse(JSONResponse):
    """A problem as JSON in ASCII, which can name what a client sent even where that is no text.

    Attributes:
        marked: the same with the marks of `search_spaces.wording`, for others than programs.
    """

    marked: ProblemDocument

    def render(self, content: Any) -> bytes:
        """The document, in which what a client sent is escaped."""
        return json.dumps(content, separators=(",", ":")).encode()


class ProblemError(Exception):
    """An error to be told to the client.

    Args:
        status: HTTP status.
        detail: one sentence.
        field: what is at fault, if it is one field.
        headers: further ones for the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = [FieldError(field=field, message=detail)] if field else []
        self.headers = dict(headers or {})


def clipped(text: str, most: int = LONGEST_TEXT) -> str:
    """A text without its middle where it is too long; what to do often stands at the end."""
    if len(text) <= most:
        return text
    return f"{text[: most * 2 // 3]} … {text[len(text) - most // 3 :]}"


def problem_response(
    status: int,
    detail: str,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> ProblemResponse:
    """The response that tells of a problem."""
    title = HTTPStatus(status).phrase
    marked = ProblemDocument(
        type="urn:nas:problem:" + title.lower().replace(" ", "-"),
        title=title,
        status=status,
        detail=detail,
        errors=list(errors[:MOST_ERRORS]),
    )
    told = {
        "detail": clipped(for_programs(detail)),
        "errors": [_for_programs(error) for error in marked.errors],
    }
    response = ProblemResponse(
        marked.model_copy(update=told).model_dump(exclude_defaults=True),
        status_code=status,
        media_type=MEDIA_TYPE,
        headers=dict(headers or {}),
    )
    response.marked = marked
    return response


def _for_programs(error: FieldError) -> FieldError:
    message = clipped(for_programs(error.message))
    return FieldError(field=clipped(error.field, LONGEST_FIELD), message=message)


def install(app: FastAPI) -> None:
    """Let the application tell all its errors this way."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(NasError, _refused)
    app.add_exception_handler(IdempotencyError, _reused)


async def _problem(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, ProblemError)
    return problem_response(error.status, error.detail, error.errors, error.headers)


async def _invalid(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[:MOST_ERRORS]
    errors = [_field_error(one) for one in found]
    if any(one["type"] == "json_invalid" for one in found):
        return problem_response(400, "the body is not JSON", errors)
    first = errors[0]
    return problem_response(422, f"{first.field}: {first.message}", errors)


def _field_error(error: Mapping[str, Any]) -> FieldError:
    where, *path = (str(part) for part in error["loc"] if "[" not in str(part))  # pydantic's own
    field = "/" + "/".join(path) if where == "body" else ".".join(path) or where
    message = str(error["msg"]).removeprefix("Value error, ")
    given = error.get("input")
    own_types = ("missing", "value_error", "json_invalid")
    if error["type"] not in own_types and (given is None or isinstance(given, str | int | float)):
        shown = repr(given) if len(str(given)) < LONGEST_INPUT else ""
        message += f"; given {shown}" if shown else ""
    field = clipped(field, LONGEST_FIELD)
    return FieldError(field=field, message=message[:1].lower() + message[1:])


async def _http(request: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_allowed(request))
    return problem_response(error.status_code, str(error.detail), headers=headers)


def _allowed(request: Request) -> list[str]:
    """The methods of all routes at a request's path; the framework names those of the first."""
    routes = request.app.routes
    own = ("type", "path", "root_path", "headers", "query_string", "app")
    scope = {name: request.scope[name] for name in own if name in request.scope}
    found = [
        method
        for method in METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return ["GET", "HEAD", *found[1:]] if found[:1] == ["GET"] else found


async def _refused(_: Request, error: Exception) -> ProblemResponse:
    assert isinstance(error, NasError)
    match error:
        case JobStateError():
            return problem_response(409, error.marked)
        case UploadError():
            told = ProblemError(error.status, error.marked, error.field and f"/{error.field}")
            return problem_response(told.status, told.detail, told.errors)
        case DatabaseFullError():
            log.error("the disk of the database is full", extra={"error": str(error)[:200]})
            return problem_response(507, full_disk("the database"))
        case DatabaseAwayError():
            log.error("the database does not answer", extra={"error": str(error)[:200]})
            detail = "the database does not answer; try again in a moment"
            return problem_response(503, detail, headers={"Retry-After": "5"})
        case DamagedRunError():
            log.error("a run is damaged", extra={"error": str(error)})
            return problem_response(
                409, "a file of this job's run is damaged; an administrator finds it in the log"
            )
        case _:
            return problem_response(422, error.marked)


async def plain_query(request: Request) -> None:
    """Refuse the character NUL in the address: no database keeps or looks for it.

    Bodies need none of this: every text of theirs has a pattern or is kept as JSON.

    Raises:
        ProblemError: 422, naming the parameter.
    """
    for name, value in request.query_params.multi_items():
        if "\0" in name or "\0" in value:
            raise ProblemError(422, "a parameter holds the character NUL; leave it out", name[:80])


async def _reused(_: Request, error: Exception) -> ProblemResponse:
    detail = "this Idempotency-Key was used before with another request; use a new key"
    return problem_response(422, detail, [FieldError(field="Idempotency-Key", message=detail)])


def unexpected() -> ProblemResponse:
    """The answer to what should not have happened."""
    return problem_response(500, "this should not have happened; the log of the server tells more")


# For the API's description: every operation may answer so.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    for status, text in (
        ("4XX", "The request cannot be served as it is; the document says why."),
        ("5XX", "The server failed; the request may be sent again."),
    )
}
