"""The page of one's webhook."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from nas.request.fields import first_problem
from search_spaces.errors import UsageError
from service.api.dependencies import Context, InContext, Submitter
from service.api.routes.webhook import SHOWN, name
from service.api.schemas import WebhookRequest
from service.auth import Token
from service.dashboard.pages import Form, Page, page

router = APIRouter(route_class=Page)


@router.get("/webhook")
def webhook(request: Request, token: Submitter, context: InContext) -> Response:
    """Where the viewer is told of jobs that end, and what came of the last messages."""
    return _page(request, token, context)


@router.post("/webhook")
def change(request: Request, token: Submitter, context: InContext, form: Form) -> Response:
    """Name a webhook, whose secret is shown once, or remove it."""
    if "remove" in form:
        context.store.outbox.remove(token.name)
        return RedirectResponse("/webhook", status_code=303)
    url = form.get("url", [""])[0].strip()
    try:
        made = name(WebhookRequest(url=url), token, context)
    except ValidationError as error:
        return _page(
            request, token, context, 422, problem=first_problem(error, WebhookRequest), url=url
        )
    except UsageError as error:
        return _page(request, token, context, 422, problem=str(error), url=url)
    return _page(request, token, context, secret=made.secret)


def _page(
    request: Request, token: Token, context: Context, status: int = 200, **values: Any
) -> Response:
    outbox = context.store.outbox
    there = outbox.get(token.name)
    shown = {"problem": None, "secret": None, "url": there.url if there else ""} | values
    last = outbox.last(token.name, SHOWN) if there else ()
    return page(request, "webhook", status, webhook=there, deliveries=last, **shown)
