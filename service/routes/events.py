"""What happens to a job, as a stream."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse
from fastapi.sse import format_sse_event

from service.access import AnyJob, AnyRole, Context, InContext
from service.auth import Token
from service.jobs.states import JobEvent
from service.problems import ProblemError

BATCH = 500
LOOK_S = 0.5  # between two looks for new events
PING_S = 15.0

router = APIRouter(prefix="/jobs", tags=["jobs"])


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
    ends with an event of the type `end`, whose data is the job's last state.
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
        body = _follow(context, token, job, after)
        super().__init__(body, media_type="text/event-stream", headers=headers)
        self._context, self._key = context, key

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            with self._context.metrics.streams.track_inprogress():
                await super().__call__(scope, receive, send)
        finally:
            self._context.streams.leave(self._key)


async def _follow(context: Context, token: Token, job: str, after: int) -> AsyncIterator[bytes]:
    pinged = time.monotonic()
    yield format_sse_event(comment="follow", retry=2000)
    while True:
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
    head = {"seq": event.seq, "time": event.time, "attempt": event.attempt}
    return format_sse_event(data_str=json.dumps({**head, **event.data}), id=str(event.seq))
