"""The Atom feed of jobs, and where it is found."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from service.api.dependencies import AnyRole, Context, InContext, feed_reader
from service.api.feed import MEDIA_TYPE, atom
from service.api.files import tagged
from service.api.schemas import FeedOut
from service.auth import Role, Token
from service.jobs.listing import Filter

SHOWN = 50

router = APIRouter(tags=["feed"])


@router.get("/feed", response_model=FeedOut)
def where(request: Request, token: AnyRole, context: InContext) -> FeedOut:
    """The address of the feed of your jobs, for readers of feeds; of an administrator of all jobs.

    Whoever knows it can read the feed, and nothing else, until your token ends.
    """
    return FeedOut(url=feed_address(request, token, context))


def feed_address(request: Request, token: Token, context: Context) -> str:
    """Where the feed of a token is found."""
    key = "open" if context.settings.no_auth else context.store.tokens.feed_key(token.id)
    return str(request.url_for("feed", token_id=token.id, key=key))


@router.get(
    "/feeds/{token_id}/{key}",
    response_class=Response,
    responses={200: {"content": {"application/atom+xml": {"schema": {"type": "string"}}}}},
)
def feed(
    request: Request,
    context: InContext,
    token_id: Annotated[str, Path(max_length=32)],
    key: Annotated[str, Path(max_length=64)],
) -> Response:
    """The newest jobs as an Atom feed; its address is its key, see `GET /api/v1/feed`."""
    token = feed_reader(request, context, token_id, key)
    owner = None if token.role is Role.admin else token.name
    jobs = context.store.jobs.list(Filter(owner=owner), SHOWN)
    site = str(request.base_url).rstrip("/")
    whose = owner or "everybody"
    body = atom(token.name, whose, jobs, site, str(request.url.replace(query="")))
    return tagged(request, body, MEDIA_TYPE, "private, no-cache")
