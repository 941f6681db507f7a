"""Submit, list, look at, cancel, retry and delete jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response

from nas.front import FRONT_FILE, pick, read_front
from nas.run_folder import RunFolder
from service.access import AnyJob, AnyRole, Context, InContext, Submitter
from service.auth import Role, Token
from service.jobs import Job, Kind, State
from service.problems import ProblemError
from service.retention import discard
from service.schemas import JobId, JobOut, JobPage, JobRequest, RetrainRequest, Text, Word
from service.specs import read_request
from service.store.jobs import Filter, Submission

HIGHEST_FOR_ALL = 5

KNOWN: dict[int | str, dict[str, Any]] = {
    200: {"model": JobOut, "description": "The job that this Idempotency-Key already stands for."}
}

router = APIRouter(prefix="/jobs", tags=["jobs"])
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Sent again with the same request, it gives the job that is there already.",
    ),
]


@router.post("", status_code=201, response_model=JobOut, responses=KNOWN)
def submit(
    given: JobRequest, token: Submitter, context: InContext, response: Response, key: Key = None
) -> JobOut:
    """Submit a search."""
    spec, space = read_request(given, context.catalog)
    request = given.model_dump(exclude_defaults=True, mode="json")
    submission = Submission(
        kind=Kind.search,
        owner=token.name,
        request=request,
        spec=spec.model_dump_json(),
        space=space.name[:200],
        dataset=spec.dataset[:200],
        preset=spec.preset,
        title=given.title,
        priority=_priority(given.priority, token),
        key=key,
    )
    return _add(submission, context, response)


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
            return _page([], None)
        owner = token.name
    wanted = Filter(owner, tuple(state), kind, space, run, text, before)
    found = context.store.jobs.list(wanted, limit + 1)
    page = found[:limit]
    return _page(page, page[-1].id if len(found) > limit else None)


def _page(jobs: Sequence[Job], after: str | None) -> Response:
    """A page, written straight away: checking it against its own model takes twice as long."""
    page = JobPage(jobs=[JobOut.of(job, whole=False) for job in jobs], next=after)
    return Response(page.model_dump_json(), media_type="application/json")


@router.get("/{job_id}", response_model=JobOut)
def show(job: AnyJob) -> JobOut:
    """One job."""
    return JobOut.of(job)


@router.post("/{job_id}/cancel", response_model=JobOut)
def cancel(job: AnyJob, token: Submitter, context: InContext) -> JobOut:
    """Cancel a job; one that runs is stopped within seconds and can be retried."""
    return JobOut.of(_still(context.store.jobs.cancel(job.id, context.settings.stale_s), job))


@router.post("/{job_id}/retry", response_model=JobOut)
def retry(job: AnyJob, token: Submitter, context: InContext) -> JobOut:
    """Let a failed or cancelled job go on where it stopped."""
    return JobOut.of(_still(context.store.jobs.retry(job.id), job))


@router.delete("/{job_id}", status_code=204)
def delete(job: AnyJob, token: Submitter, context: InContext) -> None:
    """Delete an ended job; with a search its files and the retrainings of its networks."""
    deleted = _still(context.store.jobs.delete(job.id), job)
    if deleted.kind is Kind.search:
        discard(context.settings, context.settings.runs / deleted.run)
    (context.settings.logs / f"{deleted.id}.log").unlink(missing_ok=True)


@router.post("/{job_id}/retrain", status_code=201, response_model=JobOut, responses=KNOWN)
def retrain(
    job: AnyJob,
    given: RetrainRequest,
    token: Submitter,
    context: InContext,
    response: Response,
    key: Key = None,
) -> JobOut:
    """Train a network of a finished search from scratch: a job of its own."""
    if job.kind is not Kind.search or job.state is not State.succeeded:
        raise ProblemError(
            409,
            f"networks of a search that succeeded can be retrained; this {job.kind} is {job.state}",
        )
    folder = context.settings.runs / job.run
    if not (folder / FRONT_FILE).is_file():
        raise ProblemError(409, "the files of this search are gone; submit it again")
    entry = pick(read_front(RunFolder.open(folder)), given.pick)
    submission = Submission(
        kind=Kind.retrain,
        owner=job.owner,
        request=given.model_dump(mode="json"),
        run=job.run,
        space=job.space,
        dataset=job.dataset,
        preset=job.preset,
        title=job.title,
        pick=entry.id,
        priority=_priority(given.priority, token),
        key=key,
    )
    return _add(submission, context, response)


def _add(submission: Submission, context: Context, response: Response) -> JobOut:
    settings = context.settings
    if context.store.retention.total() >= settings.quota_bytes:
        raise ProblemError(
            507,
            f"the runs fill their {settings.quota_gib:g} GiB and nothing more can be deleted by "
            "itself; delete finished jobs, or ask an administrator for a larger quota",
        )
    job, new = context.store.jobs.submit(submission)
    if not new:
        response.status_code = 200
    response.headers["Location"] = f"/api/v1/jobs/{job.id}"
    return JobOut.of(job)


def _priority(wanted: int, token: Token) -> int:
    if wanted > HIGHEST_FOR_ALL and not token.role.includes(Role.admin):
        raise ProblemError(
            403, f"priorities above {HIGHEST_FOR_ALL} are for administrators", "/priority"
        )
    return wanted


def _still(job: Job | None, before: Job) -> Job:
    """The job as it is now.

    Raises:
        ProblemError: 404 when it was deleted, 409 when it changed just now.
    """
    if job is None:
        raise ProblemError(409, f"the job {before.id} has changed just now; look at it again")
    return job
