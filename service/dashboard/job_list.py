"""The page of jobs, with filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import Field, ValidationError

from nas.request.fields import first_problem, shown
from nas.request.fields import words as split_words
from service.api.dependencies import (
    AnyJob,
    InContext,
    Submitter,
    authenticate_reader,
)
from service.api.files import tagged
from service.api.problems import ProblemError
from service.api.routes.jobs import edit, listed
from service.api.routes.results import folder_of, reads_runs
from service.api.schemas import JobEdit, JobQuery
from service.auth import Role
from service.dashboard.pages import Form, Page, error_page, log_in, page, site_path
from service.jobs.listing import Order
from service.jobs.states import Kind, State

PER_PAGE = 25

router = APIRouter(route_class=Page)


class ListQuery(JobQuery):
    """The address of the page of jobs, or of a login."""

    limit: Annotated[int, Field(ge=1, le=200)] = PER_PAGE
    token: Annotated[str | None, Field(max_length=200)] = None

    def address(self, **changes: Any) -> str:
        """Where the page is found that shows the same but for some changes."""
        asked = self.model_copy(update=changes).model_dump(mode="json", exclude_defaults=True)
        return f"/?{urlencode(asked, doseq=True)}" if asked else "/"

    def sorted_by(self, order: Order) -> str:
        """Where the page is found in that order; backwards, if it is in that order already."""
        again = order is self.sort and not self.backwards
        return self.address(sort=order, backwards=again, before=None)


@router.get("/")
def jobs(request: Request, context: InContext, query: Annotated[ListQuery, Query()]) -> Response:
    """The jobs, newest first; with a token in the address it logs in instead."""
    if query.token is not None:
        return log_in(request, context, query.token, query.address(token=None))
    viewer = authenticate_reader(request, context)
    found, following = listed(query, viewer, context)
    store, everybody = context.store, viewer.role is Role.admin
    mine = None if everybody else viewer.name
    return page(
        request,
        "jobs",
        jobs=found,
        query=query,
        filtered=bool(query.model_dump(exclude_defaults=True, exclude={"sort", "backwards"})),
        next=following,
        fields={name: shown(field).label for name, field in JobQuery.model_fields.items()},
        defaults={name: field.default for name, field in ListQuery.model_fields.items()},
        states=list(State),
        kinds=list(Kind),
        orders=Order,
        spaces=context.catalog.space_names(),
        owners=store.jobs.owners() if everybody else (),
        tags=store.jobs.tags(mine),
        counts=store.jobs.counts(mine),
        workers=len(store.workers.alive(context.settings.stale_s)),
        moving=any(not job.state.ended for job in found),
    )


@router.post("/jobs/{job_id}/words")
def words(
    request: Request, job: AnyJob, token: Submitter, context: InContext, form: Form
) -> Response:
    """Change title, tags and notes, and go back to where they were changed.

    Where that cannot be done, the form is shown again as it was filled in.
    """
    given: dict[str, Any] = {
        name: form[name][0].replace("\r\n", "\n") for name in ("title", "notes") if name in form
    }
    if "tags" in form:
        given["tags"] = split_words("tags", form["tags"])
    came_from = form.get("back", [request.headers.get("referer", "")])[0]
    back = site_path(came_from) or "/"
    try:
        edit(job, JobEdit(**given), token, context)
    except ValidationError as error:
        problem = ProblemError(422, first_problem(error, JobEdit))
    except ProblemError as error:
        problem = error
    else:
        return RedirectResponse(back, status_code=303)
    filled_in = replace(job, **given)
    return error_page(request, problem.status, problem.detail, back, "words", job=filled_in)


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
