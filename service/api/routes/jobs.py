"""Submit, list, look at, follow, cancel, retry and delete jobs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from service.api.dependencies import AnyJob, AnyRole, Context, InContext, Submitter
from service.api.problems import ProblemError
from service.api.schemas import JobEdit, JobOut, JobPage, JobQuery, JobRequest
from service.api.specs import Search
from service.api.submitting import (
    KNOWN,
    Key,
    add_job,
    checked_priority,
    job_response,
    kept_request,
    quotas,
    within_quotas,
)
from service.api.thread_pools import Route
from service.auth import Role, Token
from service.jobs.database import DatabaseAwayError
from service.jobs.job_store import Words
from service.jobs.retention import delete_job
from service.jobs.states import Job, JobEvent, Kind
from service.jobs.submissions import Submission
from service.wording import for_programs

BATCH = 500
LOOK_S = 0.5  # between two looks for new events
PING_S = 15.0

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Route)

log = logging.getLogger("service.api.events")


@router.post("", status_code=201, response_model=JobOut, responses=KNOWN)
async def submit(
    given: JobRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Submit a search."""
    found = None
    if given.space_toml is not None or given.start is not None:
        look = partial(checked_search, given, token, context)
        found = await context.thread_pools.spaces.run(look)
    begin = partial(begin_search, given, token, context, key, found)
    return job_response(*await context.thread_pools.changes.run(begin))


def begin_search(
    given: JobRequest,
    token: Token,
    context: Context,
    key: str | None = None,
    found: Search | None = None,
) -> tuple[Job, bool]:
    """Add the job of a search.

    Args:
        given: the request.
        token: who asks.
        context: of the application.
        key: the idempotency key, if there is one.
        found: what the request was found to ask for, if somebody has looked already.

    Returns:
        The job, and whether it is new.

    Raises:
        ProblemError: naming the field at fault, as `checked_search`; 429 or 507 as `add_job`.
    """
    found = found or checked_search(given, token, context)
    submission = Submission(
        kind=Kind.search,
        owner=token.name,
        request=kept_request(given, found.spec),
        spec=found.spec,
        space=found.space[:200],
        dataset=found.dataset[:200],
        preset=found.preset,
        title=given.title,
        tags=tuple(given.tags),
        notes=given.notes,
        priority=given.priority,
        key=key,
    )
    return add_job(submission, context)


def checked_search(given: JobRequest, token: Token, context: Context) -> Search:
    """What a request asks for, if it may be submitted.

    Raises:
        ProblemError: naming the field at fault; 403 for a priority that the token may not ask for.
    """
    if given.executor == "ray" and context.settings.executor != "ray":
        raise ProblemError(
            422,
            "this server has no Ray cluster: leave executor out, or ask its operator to set "
            "NAS_EXECUTOR=ray",
            "/executor",
        )
    checked_priority(given.priority, token)
    return context.spaces.search(given, token)


@router.get("", response_model=JobPage)
def list_jobs(token: AnyRole, context: InContext, query: Annotated[JobQuery, Query()]) -> JobPage:
    """List jobs, newest first unless asked otherwise."""
    found, following = listed(query, token, context)
    return JobPage(jobs=[JobOut.listed(job) for job in found], next=following)


def listed(query: JobQuery, token: Token, context: Context) -> tuple[Sequence[Job], str | None]:
    """The jobs of a page, and the `before` of the next one."""
    if not token.may_see(query.owner or token.name):
        return [], None
    wanted = query.filter(None if token.role is Role.admin else token.name)
    found = context.store.jobs.list(wanted, query.limit + 1)
    shown = found[: query.limit]
    return shown, shown[-1].id if len(found) > query.limit else None


@router.get("/{job_id}", response_model=JobOut)
async def show(job: AnyJob) -> JobOut:
    """One job."""
    return JobOut.of(job)


@router.patch("/{job_id}", response_model=JobOut)
def edit(job: AnyJob, given: JobEdit, token: Submitter, context: InContext) -> JobOut:
    """Change title, tags or notes of a job."""
    words = Words(given.title, None if given.tags is None else tuple(given.tags), given.notes)
    with within_quotas():
        edited = context.store.jobs.edit(job.id, words, token.name, quotas(context.settings))
    return JobOut.of(_still(edited, job))


@router.post("/{job_id}/cancel", response_model=JobOut)
def cancel(job: AnyJob, token: Submitter, context: InContext) -> JobOut:
    """Cancel a job; one that runs is stopped within seconds and can be retried."""
    return JobOut.of(_still(context.store.jobs.cancel(job.id, context.settings.stale_s), job))


@router.post("/{job_id}/retry", response_model=JobOut)
def retry(job: AnyJob, token: Submitter, context: InContext) -> JobOut:
    """Let a failed or cancelled job go on where it stopped."""
    with within_quotas():
        again = context.store.jobs.retry(job.id, quotas(context.settings))
    return JobOut.of(_still(again, job))


@router.delete("/{job_id}", status_code=204)
def delete(job: AnyJob, token: Submitter, context: InContext) -> None:
    """Delete an ended job; with a search its files and all jobs about its networks."""
    _still(delete_job(context.store, context.settings, job.id), job)


def _still(job: Job | None, before: Job) -> Job:
    """The job as it is now.

    Raises:
        ProblemError: 404 when it was deleted, 409 when it changed just now.
    """
    if job is None:
        raise ProblemError(409, f"the job {before.id} has changed just now; look at it again")
    return job


@router.get(
    "/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}},
        204: {"description": "The job has ended and there is nothing after Last-Event-ID."},
    },
)
async def events(
    job: AnyJob,
    token: AnyRole,
    context: InContext,
    last: Annotated[str | None, Header(alias="Last-Event-ID", pattern=r"^\d{1,9}$")] = None,
    after: Annotated[int, Query(ge=0, le=999_999_999)] = 0,
) -> Response:
    """Follow a job: server-sent events, from the first one or from after `Last-Event-ID`.

    Each event's data is JSON with `event`, its type, and `seq`, which is also its id. The stream
    ends with an event of the type `end`, whose data is the job's last state. One that ends without
    it was broken off: open another.
    """
    begin = after if last is None else int(last)
    if job.state.ended and begin >= job.last_seq:
        return Response(status_code=204)
    key = f"{token.id}"
    if not context.streams.enter(key):
        most = context.settings.streams_per_token
        raise ProblemError(
            429, f"{most} streams are open with this token; close one", None, {"Retry-After": "5"}
        )
    return _Stream(context, token, key, job.id, begin)


class _Stream(StreamingResponse):
    """A stream that gives its place back however it ends."""

    def __init__(self, context: Context, token: Token, key: str, job: str, after: int) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        body = _while_answered(job, _follow(context, token, job, after))
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._context, self._key = context, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._context.metrics.streams.track_inprogress():
                await super().__call__(scope, receive, send)
        finally:
            self._context.streams.leave(self._key)


async def _while_answered(job: str, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same frames until the database is away; who follows then comes again later."""
    try:
        async for frame in frames:
            yield frame
    except DatabaseAwayError as error:
        told = {"job": job, "error": str(error)[:200]}
        log.error("an event stream ends: the database does not answer", extra=told)


async def _follow(context: Context, token: Token, job: str, after: int) -> AsyncIterator[bytes]:
    pinged = time.monotonic()
    yield format_sse_event(comment="follow", retry=2000)
    while not context.streams.closed:
        found = await anyio.to_thread.run_sync(context.store.events.after, job, after, BATCH)
        if found:
            yield b"".join(_frame(event) for event in found)
            after = found[-1].seq
            continue
        now = await anyio.to_thread.run_sync(context.store.jobs.get, job)
        if now is None:
            return
        if now.state.ended and now.last_seq <= after:
            yield format_sse_event(data_str=json.dumps({"state": now.state}), event="end")
            return
        if now.last_seq > after:
            continue
        if time.monotonic() - pinged >= PING_S:
            if not await anyio.to_thread.run_sync(_still_good, context, token):
                return
            yield format_sse_event(comment="still here")
            pinged = time.monotonic()
        await anyio.sleep(LOOK_S)


def _still_good(context: Context, token: Token) -> bool:
    """Whether the token was neither revoked nor has expired since the stream began."""
    return context.settings.no_auth or context.store.tokens.good(token.id)


def _frame(event: JobEvent) -> bytes:
    data = {"seq": event.seq, "time": event.time, "attempt": event.attempt, **event.data}
    told = {name: for_programs(str(data[name])) for name in ("reason", "message") if name in data}
    return format_sse_event(data_str=json.dumps(data | told), id=str(event.seq))
