"""Fronts of several jobs beside each other: as a page, and as CSV or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from nas.request.fields import LINE
from nas.request.picks import Condition, read_conditions
from nas.run.layout import DATA_FILE
from search_spaces.errors import NasError
from service.api.dependencies import AnyRole, Context, InContext, job_of
from service.api.problems import ProblemError
from service.api.routes.results import csv_response, folder_of, reads_runs
from service.api.schemas import JobId
from service.auth import Token
from service.dashboard.pages import Page, page
from service.jobs.states import Job, Kind

if TYPE_CHECKING:
    from nas.results.comparison import ComparedRun

MOST_FRONTS = 6

router = APIRouter(route_class=Page)


class CompareQuery(BaseModel):
    """The address of a comparison.

    Attributes:
        job: whose fronts.
        where: conditions on the networks listed.
        retrained: whether only those that were retrained are listed.
    """

    model_config = ConfigDict(extra="forbid")

    job: Annotated[list[JobId], Field(max_length=50)] = []
    where: Annotated[str, Field(max_length=200, pattern=LINE)] = ""
    retrained: bool = False

    def address(self, path: str = "/compare", **changes: Any) -> str:
        """Where the same is found but for some changes."""
        asked = self.model_copy(update=changes).model_dump(exclude_defaults=True)
        return f"{path}?{urlencode(asked, doseq=True)}"

    def without(self, job: str) -> str:
        """Where the others are compared."""
        return self.address(job=[one for one in self.job if one != job])


Asked = Annotated[CompareQuery, Query()]


@router.get("/compare")
@reads_runs
def compare(request: Request, token: AnyRole, context: InContext, query: Asked) -> Response:
    """Fronts of up to six searches, their networks, and genes and objectives of these."""
    from nas.results.comparison import compare_runs  # brings along what reads runs
    from service.dashboard import compare_views as views

    jobs, runs, left_out = _runs(query, token, context)
    made, problem = compare_runs(runs), None
    conditions: Sequence[Condition] = ()
    try:
        conditions = _conditions(query, runs)
    except NasError as error:
        problem = error.marked
    networks = made.networks(conditions, retrained=query.retrained)
    ids = [job.id for job in jobs]
    return page(
        request,
        "compare",
        422 if problem else 200,
        query=query,
        CompareQuery=CompareQuery,
        jobs=jobs,
        made=made,
        left_out=left_out,
        problem=problem,
        drawing=views.fronts_drawing(made),
        table=views.network_table(made, networks, ids) if runs else "",
        coordinates=views.coordinates(made, networks) if runs else "",
        numbers=[views.front_numbers(made, place) for place in range(len(runs))],
        reference=views.reference_words(made),
    )


@router.get("/compare.{form}")
@reads_runs
def download(
    token: AnyRole, context: InContext, query: Asked, form: Literal["csv", "json"]
) -> Response:
    """The networks that the page lists, all of them, with genes and everything measured."""
    from nas.results.comparison import compare_runs, rows  # brings along what reads runs

    jobs, runs, _ = _runs(query, token, context)
    made = compare_runs(runs)
    networks = made.networks(_conditions(query, runs), retrained=query.retrained)
    found = rows(made, networks, [job.id for job in jobs])
    if form == "csv":
        return csv_response(found, "comparison.csv")
    fronts = [
        {
            "job": job.id,
            "title": run.title,
            "networks": len(run.front.entries),
            "hypervolume": made.hypervolumes[place] if made.hypervolumes else None,
        }
        for place, (job, run) in enumerate(zip(jobs, runs, strict=True))
    ]
    return JSONResponse(
        {
            "objectives": made.objectives,
            "difference": made.difference,
            "reference": made.reference,
            "fronts": fronts,
            "networks": found,
        },
        headers={"Content-Disposition": 'attachment; filename="comparison.json"'},
    )


def _conditions(query: CompareQuery, runs: Sequence[ComparedRun]) -> Sequence[Condition]:
    told = [cost for run in runs for cost in run.contents.costs]
    return read_conditions(query.where, told) if query.where.strip() else ()


def _runs(
    query: CompareQuery, token: Token, context: Context
) -> tuple[list[Job], list[ComparedRun], list[tuple[Job | str, str]]]:
    """The jobs that have a front, their runs, and those left out with the reason.

    A job that is not there, or not for this token to see, is left out by its id.
    """
    from nas.results.comparison import ComparedRun
    from service.api.run_cache import cached_run

    wanted = dict.fromkeys(query.job)
    if len(wanted) > MOST_FRONTS:
        raise ProblemError(422, f"at most {MOST_FRONTS} fronts fit into one chart")
    jobs: list[Job] = []
    runs: list[ComparedRun] = []
    left_out: list[tuple[Job | str, str]] = []
    for identity in wanted:
        try:
            job = job_of(identity, token, context)
        except ProblemError:
            left_out.append((identity, "it is not there, or not yours"))
            continue
        if job.kind is not Kind.search:
            left_out.append((job, "it is about one network of a search and has no front"))
            continue
        try:
            folder = folder_of(job, context)
        except ProblemError as error:
            left_out.append((job, error.detail))
            continue
        contents = cached_run(folder).contents
        if contents.front is None:
            left_out.append((job, "nothing was measured"))
            continue
        data = folder.read_json(DATA_FILE).get("digest") if folder.has(DATA_FILE) else None
        jobs.append(job)
        runs.append(ComparedRun(job.title or f"{job.space} {job.preset}", contents, data))
    return jobs, runs, left_out
