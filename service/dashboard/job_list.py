"""The page of jobs, with filters, and the fronts of several jobs side by side."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.api.dependencies import (
    AnyJob,
    AnyRole,
    Context,
    InContext,
    authenticate_reader,
    job_of,
)
from service.api.files import tagged
from service.api.problems import ProblemError
from service.api.routes.results import folder_of, reads_runs
from service.api.schemas import JobId, Text
from service.auth import Role, Token
from service.dashboard.pages import Page, log_in, page
from service.jobs.job_store import Filter
from service.jobs.states import Job, Kind, State

PER_PAGE = 25
MOST_FRONTS = 6

router = APIRouter(route_class=Page)


@router.get("/")
def jobs(
    request: Request,
    context: InContext,
    token: Annotated[str | None, Query(max_length=200)] = None,
    state: Annotated[str, Query(max_length=20)] = "",
    kind: Annotated[str, Query(max_length=20)] = "",
    space: Annotated[str, Query(max_length=100)] = "",
    text: Annotated[Text, Query()] = "",
    before: Annotated[JobId | None, Query()] = None,
) -> Response:
    """The jobs, newest first; with a token in the address it logs in instead."""
    if token is not None:
        return log_in(request, context, token)
    viewer = authenticate_reader(request, context)
    chosen = {"state": state, "kind": kind, "space": space, "text": text}
    found = context.store.jobs.list(_filter(viewer, chosen, before), PER_PAGE + 1)
    shown = found[:PER_PAGE]
    return page(
        request,
        "jobs",
        jobs=shown,
        chosen=chosen,
        filtered=any(chosen.values()) or before is not None,
        next=shown[-1].id if len(found) > PER_PAGE else None,
        states=list(State),
        kinds=list(Kind),
        spaces=context.catalog.space_names(),
        counts=context.store.jobs.counts(_owner(viewer)),
        workers=len(context.store.workers.alive(context.settings.stale_s)),
        moving=any(not job.state.ended for job in shown),
    )


def _owner(viewer: Token) -> str | None:
    return None if viewer.role is Role.admin else viewer.name


def _filter(viewer: Token, chosen: dict[str, str], before: str | None) -> Filter:
    for name, known in (("state", State), ("kind", Kind)):
        if chosen[name] and chosen[name] not in list(known):
            raise ProblemError(422, f"{name} is one of {', '.join(known)}")
    return Filter(
        owner=_owner(viewer),
        states=(State(chosen["state"]),) if chosen["state"] else (),
        kind=Kind(chosen["kind"]) if chosen["kind"] else None,
        space=chosen["space"] or None,
        text=chosen["text"] or None,
        before=before,
    )


@router.get("/jobs/{job_id}/curve.svg")
@reads_runs
def curve(
    request: Request,
    job: AnyJob,
    context: InContext,
    event: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
) -> Response:
    """How the hypervolume of a search has grown, as a small line."""
    from service.api.run_cache import cached_run
    from service.dashboard.run_views import sparkline  # brings along what plots reports

    svg = sparkline(cached_run(folder_of(job, context)).curve)
    # What an address shows that names the last event of a job which has ended never changes.
    lasting = job.state.ended and event == job.last_seq
    keep = "max-age=86400" if lasting else "no-cache"
    return tagged(request, svg.encode(), "image/svg+xml; charset=utf-8", f"private, {keep}")


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
    from service.api.run_cache import cached_run  # brings along what reads runs
    from service.dashboard.run_views import Compared, comparison

    shown, left_out = [], []
    for job in jobs:
        if job.kind is not Kind.search:
            left_out.append((job, "it is the training of one network and has no front"))
            continue
        try:
            view = cached_run(folder_of(job, context))
        except ProblemError as error:
            left_out.append((job, error.detail))
            continue
        if view.contents.front is None:
            left_out.append((job, "nothing was measured yet"))
        else:
            shown.append(Compared(job.id, job.title or f"{job.space} {job.preset}", view))
    return {"compared": shown, "left_out": left_out, "drawing": comparison(shown)}
