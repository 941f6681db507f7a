"""What every way to submit a job has in common: keys, the quota, priorities, and the answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Header, Response

from nas.run.folder import RunFolder
from nas.run.layout import FRONT_FILE
from nas.search.front import FrontEntry, pick, read_front
from service.api.dependencies import Context
from service.api.problems import ProblemError
from service.api.schemas import JobOut, JobRequest, NetworkRequest
from service.auth import Role, Token
from service.jobs.states import Job, Kind, State
from service.jobs.submissions import NoRoomError, QueueFullError, Quotas, Submission
from service.settings import Settings

HIGHEST_FOR_ALL = 5
MAX_SPACE_BYTES = 64_000  # the longest that is shipped takes a tenth
QUEUE_S = "60"  # after which a job of a full queue may have begun

KNOWN: dict[int | str, dict[str, Any]] = {
    200: {"model": JobOut, "description": "The job that this Idempotency-Key already stands for."}
}
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
        description="Sent again with the same request, it gives the job that is there already.",
    ),
]


def kept_request(given: JobRequest, spec: str) -> dict[str, Any]:
    """A request as it is kept: without what only its writer needs, such as comments.

    Args:
        given: the request of a search.
        spec: what was made of it, as JSON.

    Raises:
        ProblemError: 422 when the space is too long even so.
    """
    request = given.model_dump(exclude_defaults=True, mode="json")
    if given.space_toml is not None:
        toml = str(json.loads(spec)["space_toml"])
        if len(toml.encode()) > MAX_SPACE_BYTES:
            raise ProblemError(
                422,
                f"the space takes {len(toml.encode()):,} bytes without its comments; "
                f"{MAX_SPACE_BYTES:,} are the most",
                "/space_toml",
            )
        request["space_toml"] = toml
        request.pop("restrict", None)  # it is in the space by now
    return request


def add_job(submission: Submission, context: Context) -> tuple[Job, bool]:
    """Add a job, or find the one that its key already stands for.

    Returns:
        The job, and whether it is new.

    Raises:
        ProblemError: 429 with too many jobs waiting, 507 while a quota is full.
    """
    with within_quotas():
        return context.store.jobs.submit(submission, quotas(context.settings))


def quotas(settings: Settings) -> Quotas:
    """What each owner, and all together, may have; administrators are owners like others."""
    return Quotas(
        queued=settings.queued_per_owner,
        database_bytes=settings.database_bytes_per_owner,
        owner_disk_bytes=settings.owner_quota_bytes,
        disk_bytes=settings.quota_bytes,
    )


@contextmanager
def within_quotas() -> Iterator[None]:
    """Tell a client which quota is full.

    Raises:
        ProblemError: 429 when jobs that wait are too many, 507 when there is no room.
    """
    try:
        yield
    except QueueFullError as error:
        raise ProblemError(429, str(error), headers={"Retry-After": QUEUE_S}) from None
    except NoRoomError as error:
        raise ProblemError(507, str(error)) from None


def job_response(job: Job, new: bool) -> Response:
    """The answer to a submission: 201, or 200 for a job that was there already."""
    headers = {"Location": f"/api/v1/jobs/{job.id}"}
    text = JobOut.of(job).model_dump_json()
    return Response(text, 201 if new else 200, headers, media_type="application/json")


def checked_priority(wanted: int, token: Token) -> int:
    """The priority that was asked for.

    Raises:
        ProblemError: 403 for a higher one than the token may ask for.
    """
    if wanted > HIGHEST_FOR_ALL and not token.role.includes(Role.admin):
        raise ProblemError(
            403, f"priorities above {HIGHEST_FOR_ALL} are for administrators", "/priority"
        )
    return wanted


def network_of(job: Job, how: str, context: Context) -> tuple[RunFolder, FrontEntry]:
    """A network of a finished search, and the run it is of.

    Raises:
        ProblemError: 409 when the job is no search that succeeded, or has no files any more.
        UsageError: when there is no such network on the front.
    """
    if job.kind is not Kind.search or job.state is not State.succeeded:
        raise ProblemError(
            409,
            "this can be asked about networks of a search that succeeded; "
            f"this {job.kind} is {job.state}",
        )
    path = context.settings.runs / job.run
    if not (path / FRONT_FILE).is_file():
        raise ProblemError(409, "the files of this search are gone; submit it again")
    folder = RunFolder.open(path)
    if folder.spec.evaluator is not None:
        raise ProblemError(
            409,
            "the networks of this search are known to its evaluator alone: they cannot be trained, "
            "exported or looked into here",
        )
    return folder, pick(read_front(folder), how)


def follow_up(
    kind: Kind,
    job: Job,
    network: FrontEntry,
    given: NetworkRequest,
    token: Token,
    context: Context,
    key: str | None = None,
) -> tuple[Job, bool]:
    """Add a job about a network of a finished search.

    Raises:
        ProblemError: 403 for a priority that the token may not ask for; 429 and 507 as `add_job`.
    """
    submission = Submission(
        kind=kind,
        owner=job.owner,
        request=given.model_dump(mode="json"),
        run=job.run,
        space=job.space,
        dataset=job.dataset,
        preset=job.preset,
        title=job.title,
        tags=job.tags,
        pick=network.id,
        priority=checked_priority(given.priority, token),
        key=key,
    )
    return add_job(submission, context)
