"""What all pages share: templates, headers, errors that people can read, and forms."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from service.access import AnyRole, check_same_origin, context_of
from service.auth import Role, Token
from service.dashboard import formats
from service.dashboard.static import address_of
from service.lanes import Route
from service.problems import ProblemError, unexpected

# Scripts come from here only. Charts set styles of their own, so these are allowed inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# With Gate's no-referrer a browser would not name the origin of a form, which we ask for.
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
MOST_FIELDS = 3000

log = logging.getLogger("service.dashboard")

Handler = Callable[[Request], Coroutine[Any, Any, Any]]

_templates = Environment(
    loader=PackageLoader("service.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters |= formats.FILTERS
_templates.globals["address_of"] = address_of


def page(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    """A page from its template.

    Args:
        request: it answers.
        name: of the template, without its ending.
        status: HTTP status.
        values: what the template reads.
    """
    token: Token | None = getattr(request.state, "token", None)
    text = _templates.get_template(f"{name}.html").render(
        token=token,
        may_submit=token is not None and token.role.includes(Role.submitter),
        open_to_all=context_of(request).settings.no_auth,
        **values,
    )
    body = text.encode("utf-8", "replace")  # a name of a file need not be text
    return HTMLResponse(body, status_code=status, headers=HEADERS)


class Page(Route):
    """A route whose errors are pages too; without a good token the answer is the login page."""

    def get_route_handler(self) -> Handler:
        """The handler with the application's own error handlers around it."""
        plain = super().get_route_handler()

        async def handler(request: Request) -> Any:
            try:
                return await plain(request)
            except Exception as error:
                return await _error_page(request, error)

        return handler


async def _error_page(request: Request, error: Exception) -> HTMLResponse:
    handlers = request.app.exception_handlers
    known = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    if known is None:
        log.error("unexpected error", exc_info=error)
    answer = unexpected() if known is None else await known(request, error)
    problem = json.loads(bytes(answer.body))
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        return page(request, "login", answer.status_code, problem=None)
    shown = page(request, "error", answer.status_code, problem=problem)
    if "retry-after" in answer.headers:
        shown.headers["Retry-After"] = answer.headers["retry-after"]
    return shown


async def _form(request: Request) -> dict[str, list[str]]:
    """The fields of a form that one of our own pages has sent.

    Raises:
        ProblemError: 403 for a form of another page, 422 for what is no form.
    """
    check_same_origin(request)
    body = await request.body()
    try:
        form = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise ProblemError(422, f"this is no form: {error}") from error
    if any("\0" in text for name, values in form.items() for text in (name, *values)):
        raise ProblemError(422, "a field holds the character NUL; leave it out")
    return form


Form = Annotated[dict[str, list[str]], Depends(_form)]
Viewer = AnyRole
