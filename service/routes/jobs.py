"""Submit, list, look at, cancel, retry and delete jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from service import job_json
from service.access import AnyJob, AnyRole, Context, InContext, Submitter
from service.auth import Token
from service.jobs import Job, Kind, State
from service.lanes import Route
from service.problems import ProblemError
from service.retention import delete_job
from service.schemas import JobId, JobOut, JobPage, JobRequest, Text, Word
from service.specs import Search
from service.store.listing import Filter
from service.store.submissions import Submission
from service.submitting import (
    KNOWN,
    Key,
    add_job,
    checked_priority,
    kept_request,
    quotas,
    told,
    within_quotas,
)

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=Route)


@router.post("", status_code=201, response_model=JobOut, responses=KNOWN)
async def submit(
    given: JobRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Submit a search."""
    found = None
    if given.space_toml is not None:
        found = await context.lanes.spaces.run(partial(context.spaces.search, given))
    begin = partial(begin_search, given, token, context, key, found)
    return told(*await context.lanes.changes.run(begin))


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
        ProblemError: naming the field at fault; 403, 429 or 507 as `add_job` and
            `checked_priority`.
    """
    if given.executor == "ray" and context.settings.executor != "ray":
        raise ProblemError(
            422,
            "this server has no Ray cluster: leave executor out, or ask its operator to set "
            "NAS_EXECUTOR=ray",
            "/executor",
        )
    found = found or context.spaces.search(given)
    submission = Submission(
        kind=Kind.search,
        owner=token.name,
        request=kept_request(given, found.spec),
        spec=found.spec,
        space=found.space[:200],
        dataset=found.dataset[:200],
        preset=found.preset,
        title=given.title,
        priority=checked_priority(given.priority, token),
        key=key,
    )
    return add_job(submission, context)


@router.get("", response_model=JobPage)
def list_jobs(
    token: AnyRole,
    context: InContext,
    state: Annotated[list[State], Query(max_length=5)] = [],  # noqa: B006
    owner: Annotated[str | None, Query(max_length=64)] = None,
    kind: Kind | None = None,
    space: Annotated[Word | None, Query()] = None,
    run: Annotated[JobId | None, Query()] = None,
    text: Annotated[Text | None, Query(description="Part of title, space, data set or id.")] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    before: Annotated[JobId | None, Query(description="`next` of the page before.")] = None,
) -> Response:
    """List jobs, newest first."""
    if not token.may_see(owner or ""):
        if owner not in (None, token.name):
            return job_json.page([], None)
        owner = token.name
    wanted = Filter(owner, tuple(state), kind, space, run, text, before)
    found = context.store.jobs.listed(wanted, limit + 1)
    page = found[:limit]
    return job_json.page(page, page[-1]["id"] if len(found) > limit else None)


@router.get("/{job_id}", response_model=JobOut)
async def show(job: AnyJob) -> Response:
    """One job."""
    return job_json.whole(job)


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
