"""The fronts of several jobs in one chart."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.access import AnyRole, Context, InContext, job_of
from service.auth import Token
from service.dashboard.pages import Page, page
from service.jobs.states import Job, Kind
from service.problems import ProblemError
from service.routes.results import folder_of, reads_runs
from service.schemas import JobId

MOST_FRONTS = 6

router = APIRouter(route_class=Page)


@router.get("/compare")
@reads_runs
def compare(
    request: Request,
    token: AnyRole,
    context: InContext,
    job: Annotated[list[JobId], Query(max_length=50)] = [],  # noqa: B006
) -> Response:
    """Fronts of up to six searches, in a chart for each cost that all of them have."""
    if len(set(job)) > MOST_FRONTS:
        raise ProblemError(422, f"at most {MOST_FRONTS} fronts fit into one chart")
    jobs = [job_of(identity, token, context) for identity in dict.fromkeys(job)]
    return page(request, "compare", **_parts(jobs, token, context))


def _parts(jobs: list[Job], token: Token, context: Context) -> dict[str, Any]:
    from service.dashboard.front_comparison import Compared, comparison
    from service.known_runs import known_run  # brings along what reads runs

    shown, left_out = [], []
    for job in jobs:
        if job.kind is not Kind.search:
            left_out.append((job, "it is the training of one network and has no front"))
            continue
        try:
            view = known_run(folder_of(job, context))
        except ProblemError as error:
            left_out.append((job, error.detail))
            continue
        if view.contents.front is None:
            left_out.append((job, "nothing was measured yet"))
        else:
            shown.append(Compared(job.id, job.title or f"{job.space} {job.preset}", view))
    return {"compared": shown, "left_out": left_out, "drawing": comparison(shown)}
