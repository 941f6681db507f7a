"""Logging in with a token, by link or by form, and out."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.access import COOKIE, Context, InContext, token_of
from service.dashboard.pages import Form, Page, page
from service.problems import ProblemError

LONGEST_S = 30 * 86400

router = APIRouter(route_class=Page)


def log_in(request: Request, context: Context, secret: str) -> Response:
    """Keep a good token in a cookie that scripts and other sites never get.

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
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=max(1, min(LONGEST_S, left_s)),
        httponly=True,
        samesite="strict",
        secure=request.scope["scheme"] == "https",  # a trusted proxy may say so
    )
    return answer


@router.post("/login")
def login(request: Request, context: InContext, form: Form) -> Response:
    """Log in with the token that was typed in."""
    secret = form.get("token", [""])[0].strip()
    try:
        return log_in(request, context, secret)
    except ProblemError as error:
        if error.status != 401:
            raise
        return page(request, "login", 401, problem="This token is not good. Is it complete?")


@router.post("/logout")
async def logout(request: Request, form: Form) -> Response:
    """Forget the cookie; the token itself stays good."""
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer
