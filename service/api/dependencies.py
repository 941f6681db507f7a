"""Who is asking, and what they get to see: the dependencies of the routes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from fastapi import Depends, Path, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from service.api.bounds import RateLimit, Streams, network_of
from service.api.catalog import Catalog
from service.api.health import Metrics, Readiness
from service.api.problems import ProblemError
from service.api.space_reader import SpaceReader
from service.api.thread_pools import ThreadPools
from service.auth import ANYBODY, Role, Token, digest_of, is_secret
from service.data_uploads import DataUploads
from service.jobs.states import Job
from service.jobs.store import Store
from service.settings import Settings
from service.uploads import Uploads

COOKIE = "nas_session"  # the token's secret, for the dashboard's pages
UNSAFE = ("POST", "PUT", "PATCH", "DELETE")

_bearer = HTTPBearer(auto_error=False, description="A token made by `nas token create`.")


@dataclass(frozen=True)
class Context:
    """What the routes work with.

    Attributes:
        settings: of the service.
        store: what is remembered.
        catalog: spaces and data sets.
        requests: how often a token may ask.
        failures: how often an address may be wrong about its token.
        streams: open event streams.
        receiving: files of checkpoints that are just being sent, by owner.
        uploads: checkpoints that were uploaded.
        data: data sets that were uploaded.
        thread_pools: threads for what may take long, so that no reader waits for one because of it.
        spaces: checks the spaces that requests bring along.
        readiness: whether requests can be taken.
        metrics: what is counted.
    """

    settings: Settings
    store: Store
    catalog: Catalog
    requests: RateLimit
    failures: RateLimit
    streams: Streams
    receiving: Streams
    uploads: Uploads
    data: DataUploads
    thread_pools: ThreadPools
    spaces: SpaceReader
    readiness: Readiness
    metrics: Metrics


def context_of(request: Request) -> Context:
    """The context of the application a request came to."""
    context: Context = request.app.state.context
    return context


# A dependency that is no coroutine costs a change of threads, which takes longer than most of them.
async def _in_context(request: Request) -> Context:
    return context_of(request)


InContext = Annotated[Context, Depends(_in_context)]


async def authenticate(
    request: Request,
    context: InContext,
    given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)],
) -> Token:
    """The token a request was made with.

    Raises:
        ProblemError: 401 without a good one, 429 after too many.
    """
    secret = _from_cookie(request) if given is None else given.credentials
    let_in = partial(_let_in, request, context, secret)
    if secret is None or context.settings.no_auth:
        return let_in()
    return await context.thread_pools.tokens.run(let_in)


def authenticate_reader(request: Request, context: Context) -> Token:
    """The token in the cookie of a page's request; asks the database.

    Raises:
        ProblemError: 401 without a good one, 429 after too many.
    """
    return _let_in(request, context, _from_cookie(request))


def _from_cookie(request: Request) -> str | None:
    secret = request.cookies.get(COOKIE)
    if secret is not None and request.method in UNSAFE:
        check_same_origin(request)
    return secret


def _let_in(request: Request, context: Context, secret: str | None) -> Token:
    token = token_of(request, context, secret)
    wait = context.requests.wait_s(token.id)
    if wait:
        raise _too_many(wait, "this token has made too many requests")
    request.state.token = token
    return token


def check_same_origin(request: Request) -> None:
    """Refuse a change that comes with a cookie unless a page of this site asks for it.

    `RequestMiddleware` has refused other origins already; here one has to be named.

    Raises:
        ProblemError: 403.
    """
    site = request.headers.get("sec-fetch-site")
    if site != "same-origin" and (site is not None or "origin" not in request.headers):
        raise ProblemError(403, "only a page of this service may do that with its cookie")


def token_of(request: Request, context: Context, secret: str | None) -> Token:
    """The token with that secret, None where a request came with none.

    Raises:
        ProblemError: 401 when it is not good, 429 after too many such.
    """
    if context.settings.no_auth:
        return ANYBODY
    if secret is not None and is_secret(secret):
        token = context.store.tokens.valid(digest_of(secret))
        if token is not None:
            return token
    # Whoever has a good one is let in, however often others at this address have guessed.
    address = network_of(request.client.host if request.client else "?")
    wait = 0.0 if secret is None else context.failures.wait_s(address)
    if wait:
        raise _too_many(wait, "too many requests with a wrong token came from this address")
    raise ProblemError(
        401,
        "this needs a token that is good: send it as Authorization: Bearer TOKEN; "
        "nas token create makes one",
        headers={"WWW-Authenticate": 'Bearer realm="nas"'},
    )


def feed_reader(request: Request, context: Context, token_id: str, key: str) -> Token:
    """The token whose feed an address opens.

    Raises:
        ProblemError: 404 when it opens none, 429 after too many requests, or too many such.
    """
    if context.settings.no_auth:
        return ANYBODY
    token = context.store.tokens.of_feed(token_id, key) if key.isascii() else None
    if token is None:
        address = network_of(request.client.host if request.client else "?")
        if wait := context.failures.wait_s(address):
            raise _too_many(wait, "too many requests for feeds that are not there")
        raise ProblemError(404, "there is no feed at this address; GET /api/v1/feed tells yours")
    if wait := context.requests.wait_s(token.id):
        raise _too_many(wait, "this feed was asked for too often")
    return token


def _too_many(wait_s: float, what: str) -> ProblemError:
    seconds = max(1, math.ceil(wait_s))
    return ProblemError(429, f"{what}; wait {seconds} s", headers={"Retry-After": str(seconds)})


AnyRole = Annotated[Token, Depends(authenticate)]


async def _submitter(token: AnyRole) -> Token:
    return _with_role(token, Role.submitter)


async def _admin(token: AnyRole) -> Token:
    return _with_role(token, Role.admin)


def _with_role(token: Token, role: Role) -> Token:
    if not token.role.includes(role):
        raise ProblemError(
            403, f"this needs a token of the role {role}; this one is a {token.role}"
        )
    return token


Submitter = Annotated[Token, Depends(_submitter)]
Admin = Annotated[Token, Depends(_admin)]
JobPath = Annotated[str, Path(pattern="^[0-9a-f]{20}$", description="Id of a job.")]


def job_of(job_id: JobPath, token: AnyRole, context: InContext) -> Job:
    """The job a path names, if the token may see it.

    Raises:
        ProblemError: 404 when there is none, or none that may be seen.
    """
    job = context.store.jobs.get(job_id)
    if job is None or not token.may_see(job.owner):
        raise ProblemError(404, f"there is no job {job_id}")
    return job


AnyJob = Annotated[Job, Depends(job_of)]
