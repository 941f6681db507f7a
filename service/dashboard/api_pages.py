"""What the API takes and gives, as a page, and the way to the feed."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.dependencies import AnyRole, InContext
from service.api.routes.feed import feed_address
from service.dashboard.pages import Page, page

router = APIRouter(route_class=Page)


@router.get("/docs")
def docs(request: Request, token: AnyRole) -> Response:
    """The description of the API, for people."""
    return page(request, "docs", document=request.app.openapi())


@router.get("/feed")
def feed(request: Request, token: AnyRole, context: InContext) -> Response:
    """To the feed of the viewer's jobs, whose address is for readers of feeds."""
    return RedirectResponse(feed_address(request, token, context), status_code=303)
