"""What all pages share: templates, forms, logging in, and how numbers and errors are written."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qs, urlencode, urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException

from nas.request.fields import bounds_of
from service.api.dependencies import (
    COOKIE,
    Context,
    InContext,
    check_same_origin,
    context_of,
    token_of,
)
from service.api.problems import ProblemError, clipped, unexpected
from service.api.schemas import JobEdit, JobQuery, PredictRequest, WebhookRequest
from service.api.thread_pools import Route
from service.auth import Role, Token
from service.dashboard.static import address_of
from service.dashboard.wording import for_pages
from service.jobs.states import Job, State

# Scripts come from here only. Charts set styles of their own, so these are allowed inline, and are
# drawn as pictures by way of blobs.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)
# With the usual no-referrer a browser would not name the origin of a form, which we ask for.
HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
MOST_FIELDS = 3000
LONGEST_S = 30 * 86400  # that a cookie is kept
SIZES = ("bytes", "kB", "MB", "GB")
HEADINGS = {
    404: "There is no such page",
    405: "There is no such page",
    409: "Not now",
    422: "That does not work",
}
API = "/api/"  # how the paths of programs begin, which are told in JSON
KEPT_HEADERS = ("retry-after", "allow")  # of a problem, on the page that tells it

log = logging.getLogger("service.dashboard")

Handler = Callable[[Request], Coroutine[Any, Any, Any]]

_templates = Environment(
    loader=PackageLoader("service.dashboard"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals |= {"address_of": address_of, "bounds_of": bounds_of}
# Whose fields have controls in templates.
FORMS = (JobEdit, JobQuery, PredictRequest, WebhookRequest)
_templates.globals |= {form.__name__: form for form in FORMS}


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
    body = for_pages(text).encode("utf-8", "replace")  # a name of a file need not be text
    return HTMLResponse(body, status_code=status, headers=HEADERS)


def error_page(
    request: Request,
    status: int,
    detail: str,
    back: str | None,
    name: str = "error",
    **values: Any,
) -> HTMLResponse:
    """A page that says why something cannot be done.

    Args:
        request: it answers.
        status: HTTP status.
        detail: the reason, as a part of a sentence.
        back: where the reader came from; None where no link leads back.
        name: of a template that shows more.
        values: what that reads.
    """
    heading = HEADINGS.get(status, HTTPStatus(status).phrase)
    told = {"heading": heading, "detail": clipped(for_pages(detail)), "back": back}
    return page(request, name, status, **told, **values)


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
    if isinstance(error, RequestValidationError) and error.errors()[0]["loc"][0] == "path":
        error = ProblemError(404, _nothing_at(request))
    handlers = request.app.exception_handlers
    known = next((handlers[kind] for kind in type(error).__mro__ if kind in handlers), None)
    if known is None:
        log.error("unexpected error", exc_info=error)
    answer = unexpected() if known is None else await known(request, error)
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        return page(request, "login", answer.status_code, problem=None, target=_opened(request))
    back = site_path(request.headers.get("referer", "")) if request.method == "POST" else None
    shown = error_page(request, answer.status_code, answer.marked.detail, back)
    shown.headers.update({n: answer.headers[n] for n in KEPT_HEADERS if n in answer.headers})
    return shown


def _nothing_at(request: Request) -> str:
    return f"there is nothing at {request.url.path[:100]!r}, which may be cut off"


def install(app: FastAPI) -> None:
    """Let browsers have a page also where no route answers, outside of the API."""
    for status in (404, 405):
        app.add_exception_handler(status, _unanswered)


async def _unanswered(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if request.url.path.startswith(API) or "text/html" not in request.headers.get("accept", ""):
        answer: Response = await request.app.exception_handlers[HTTPException](request, error)
        return answer
    detail = str(error.detail)
    if error.status_code == HTTPStatus.NOT_FOUND:
        detail = _nothing_at(request)
    elif request.method == "GET":
        detail = f"{request.url.path[:100]!r} takes a form and shows nothing by itself"
    return await _error_page(request, HTTPException(error.status_code, detail))


def _opened(request: Request) -> str:
    """The address to go to after logging in: the one that was asked for, or its form's page.

    A token in it was not good: it would be tried again in place of the one that is typed in.
    """
    if request.method == "GET":
        asked = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        return f"{request.url.path}?{urlencode(asked)}" if asked else request.url.path
    return site_path(request.headers.get("referer", "")) or "/"


def site_path(address: str) -> str | None:
    """Path and query of an address, which lead nowhere but to this site; None without any."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return None
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    # Browsers take a second slash, either way round, for the name of another site.
    good = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if good else None


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


# -- logging in and out ---------------------------------------------------------------------------

router = APIRouter(route_class=Page)


def log_in(request: Request, context: Context, secret: str, target: str = "/") -> Response:
    """Keep a good token in a cookie that scripts and other sites never get.

    Args:
        request: that brings it.
        context: of the application.
        secret: the token's.
        target: where to go then, as far as that is a page of this site.

    Raises:
        ProblemError: 401 or 429 for a wrong one, 403 when a page of another site has sent it.
    """
    if request.headers.get("sec-fetch-site") == "cross-site":
        # It would log its reader in as whoever made the link.
        raise ProblemError(
            403, "a page of another site may not log you in: copy the link into the address bar"
        )
    token = token_of(request, context, secret)
    left_s = LONGEST_S if token.expires_at is None else int(token.expires_at - time.time())
    answer = RedirectResponse(site_path(target) or "/", status_code=303)
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=max(1, min(LONGEST_S, left_s)),
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",  # a trusted proxy may say so
    )
    return answer


@router.get("/login")
async def login_page() -> Response:
    """To the jobs, which ask for a login; browsers come here again after a wrong token."""
    return RedirectResponse("/", status_code=303)


@router.post("/login")
def login(request: Request, context: InContext, form: Form) -> Response:
    """Log in with the token that was typed in."""
    secret, target = (form.get(name, [""])[0].strip() for name in ("token", "target"))
    try:
        return log_in(request, context, secret, target)
    except ProblemError as error:
        if error.status != 401:
            raise
        problem = "This token is not good. Is it complete?"
        return page(request, "login", 401, problem=problem, target=site_path(target) or "/")


@router.post("/logout")
async def logout(request: Request, form: Form) -> Response:
    """Forget the cookie; the token itself stays good."""
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


# -- numbers and moments ---------------------------------------------------------------------------


def duration(seconds: float) -> str:
    """Seconds as the report says them."""
    from nas.report import words  # brings along what plots reports

    return words.duration(max(seconds, 0.0))


def moment(seconds: float | None) -> str:
    """A moment as ``2026-03-01 12:00`` in UTC."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def clock(seconds: float) -> str:
    """The time of day of a moment, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%H:%M:%S")


def iso(seconds: float) -> str:
    """A moment as machines read it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def size(count: int) -> str:
    """Bytes in the largest unit that leaves a number of at least one."""
    number, unit = float(count), 0
    while number >= 1000 and unit < len(SIZES) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} {SIZES[unit]}" if unit == 0 else f"{number:.1f} {SIZES[unit]}"


def share(number: float | None) -> str:
    """A share between 0 and 1 with three decimals."""
    return "–" if number is None else f"{number:.3f}"


def digits(number: int) -> str:
    """A count as the report writes it: whole, or as a power of ten."""
    from nas.report import words

    return words.count(number)


def worked_s(job: Job) -> float:
    """Seconds of work that a job has taken: of its ended stages, and of the one it is in."""
    begun = job.summary.stage_at
    running = job.state is State.running and begun is not None
    return job.summary.worked_s + (time.time() - begun if running and begun else 0.0)


def left_s(job: Job) -> float | None:
    """Seconds until the present stage will end if it goes on as it did; None when unknown."""
    summary = job.summary
    if job.state is not State.running or summary.stage_at is None:
        return None
    if not 0 < summary.done < summary.total:
        return None
    return (time.time() - summary.stage_at) / summary.done * (summary.total - summary.done)


def event_text(event: Mapping[str, Any]) -> str:
    """What an event of `nas.run.events` or of the store tells, in a few words."""
    match event.get("event"):
        case "StateChanged":
            change = f"{event['before']} → {event['state']}" if event["before"] else event["state"]
            return f"{change}: {event['reason']}" if event.get("reason") else str(change)
        case "Progress":
            steps = f"{event['stage']}: {event['done']} of {event['total']}"
            return f"{steps}, {event['message']}" if event.get("message") else steps
        case "ArchitectureMeasured":
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in event["metrics"].items())
            return f"{event['architecture_id']}: {numbers}"
        case "EvaluationFailed":
            return f"{event['architecture_id']} failed ({event['kind']}): {event['reason']}"
        case "FrontUpdated":
            from nas.report import words

            front = words.plural(len(event["points"]), "network")
            return f"{front}, hypervolume {event['hypervolume']:.3f}"
        case "StageFinished":
            return f"{event['stage']}: {event['seconds']:.1f} s"
        case "DurationTold":
            told = f"{duration(event['seconds'])} told, {event['about']}"
            return f"no duration is told: {event['reason']}" if event["reason"] else told
        case _:
            return str(event.get("message") or event.get("label") or event.get("stage") or "")


FILTERS: dict[str, Callable[..., Any]] = {
    "duration": duration,
    "moment": moment,
    "clock": clock,
    "iso": iso,
    "size": size,
    "share": share,
    "digits": digits,
    "worked_s": worked_s,
    "left_s": left_s,
    "event_text": event_text,
    "for_pages": for_pages,
}
_templates.filters |= FILTERS
