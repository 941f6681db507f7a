"""The page of jobs: how each stands, and filters."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from service.access import AnyJob, InContext, authenticate_reader
from service.auth import Role, Token
from service.dashboard.pages import Page, page
from service.dashboard.session import log_in
from service.jobs.job_store import Filter
from service.jobs.states import Kind, State
from service.problems import ProblemError
from service.responses import tagged
from service.routes.results import folder_of, reads_runs
from service.schemas import JobId, Text

PER_PAGE = 25

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
    from service.dashboard.run_views import sparkline  # brings along what plots reports
    from service.known_runs import known_run

    svg = sparkline(known_run(folder_of(job, context)).curve)
    # What an address shows that names the last event of a job which has ended never changes.
    lasting = job.state.ended and event == job.last_seq
    keep = "max-age=86400" if lasting else "no-cache"
    return tagged(request, svg.encode(), "image/svg+xml; charset=utf-8", f"private, {keep}")
