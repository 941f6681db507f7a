"""The pages of a job and of its networks, and what can be done with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from nas.run.layout import REPORT_FILE
from service.api.dependencies import AnyJob, Context, InContext, Submitter
from service.api.files import list_artifacts
from service.api.problems import ProblemError
from service.api.routes import jobs
from service.api.routes import networks as follow_ups
from service.api.routes.results import folder_of, reads_runs
from service.api.schemas import ArtifactOut, ExportRequest, NetworkRequest
from service.auth import Token
from service.dashboard.pages import Form, Page, page
from service.jobs.listing import Filter
from service.jobs.states import Job, Kind, State
from supernet.export.formats import FORMATS

LAST_EVENTS = 100
MOST_CARDS = 12
MOST_JOBS = 100
MOST_FILES = 500

router = APIRouter(prefix="/jobs/{job_id}", route_class=Page)


@router.get("")
@reads_runs
def show(request: Request, job: AnyJob, context: InContext) -> Response:
    """A job as it stands; a script asks for it again while the job goes on."""
    files = _files(job, context)
    return page(
        request,
        "job",
        job=job,
        related=_related(job, context),
        events=context.store.events.after(job.id, job.last_seq - LAST_EVENTS, LAST_EVENTS)[::-1],
        files=files[:MOST_FILES],
        all_files=len(files),
        report=any(file.path == REPORT_FILE for file in files),
        retryable=job.state in (State.failed, State.cancelled),
        **_run_parts(job, context),
    )


def _run_parts(job: Job, context: Context) -> dict[str, Any]:
    """What the page shows of the run; nothing where there are no files."""
    try:
        folder = folder_of(job, context)
    except ProblemError as error:
        return {"view": None, "why_not": error.detail}
    from nas.report.front_section import good_corner  # brings along what reads and plots runs
    from service.api.run_cache import cached_networks, cached_run, showing
    from service.dashboard import run_views as views

    if job.kind is not Kind.search:
        from service.dashboard import network_views as shown

        view = cached_networks(folder, [job.pick])
        with showing(folder.path):
            networks = shown.network_views(view, [job.pick])
        return {"view": view, "networks": networks, "key": shown.colour_key(view.contents)}
    view = cached_run(folder)
    with showing(folder.path):
        return {
            "view": view,
            "numbers": views.picked_numbers(view, job),
            "charts": views.front_charts(view, ended=job.state.ended),
            "good_corner": good_corner(view.contents, view.contents.costs),
            "table": views.choice_table(view, job.id),
            "growth": views.growth_chart(view, ended=job.state.ended),
            "stages": views.stages(view, job),
            "evidence": views.evidence(view),
            "formats": list(FORMATS),
            "front_size": views.front_size(view),
            "measured": view.measured,
        }


def _related(job: Job, context: Context) -> list[Job]:
    """Other jobs on the same run."""
    found = context.store.jobs.list(Filter(run=job.run), MOST_JOBS)
    return [other for other in found if other.id != job.id]


def _files(job: Job, context: Context) -> list[ArtifactOut]:
    try:
        return list_artifacts(folder_of(job, context).path)
    except ProblemError:  # there are none yet, or none any more
        return []


@router.get("/networks")
@reads_runs
def networks(
    request: Request,
    job: AnyJob,
    context: InContext,
    id: Annotated[list[str], Query(max_length=200)] = [],  # noqa: B006
) -> Response:
    """Networks of a run side by side."""
    from service.api.run_cache import cached_networks, showing
    from service.dashboard import network_views as views

    folder, wanted = folder_of(job, context), list(dict.fromkeys(id))[:MOST_CARDS]
    view = cached_networks(folder, wanted)
    with showing(folder.path):
        shown = views.network_views(view, wanted)
    if id and not shown:
        raise ProblemError(404, f"the job {job.id} has no network {id[0][:50]!r}")
    finished = job.kind is Kind.search and job.state is State.succeeded
    key = views.colour_key(view.contents)
    return page(
        request,
        "networks",
        job=job,
        networks=shown,
        key=key,
        finished=finished,
        formats=list(FORMATS),
    )


@router.get("/networks/{arch_id}")
@reads_runs
def network(request: Request, job: AnyJob, context: InContext, arch_id: str) -> Response:
    """A network: its numbers, its training, its layers, and what was made of it."""
    from service.api.run_cache import cached_networks, showing
    from service.dashboard import network_views as views

    folder = folder_of(job, context)
    view = cached_networks(folder, [arch_id])
    with showing(folder.path):
        shown = views.network_views(view, [arch_id])
        if not shown:
            raise ProblemError(404, f"the job {job.id} has no network {arch_id[:50]!r}")
        whole = views.whole_page(view, folder, shown[0])
    search = job if job.kind is Kind.search else context.store.jobs.get(job.run)
    exported = f"export/{arch_id}/"
    return page(
        request,
        "network",
        job=job,
        search=search,
        one=shown[0],
        trained=view.contents.spec.trained,
        key=views.colour_key(view.contents),
        whole=whole,
        asked_with=views.asked_with(view.contents),
        # As base64 a picture takes a third more.
        most_bytes=context.settings.max_body_bytes * 7 // 10,
        writes=view.contents.spec.evaluator is None
        and view.contents.space.task == "language_modelling",
        finished=search is not None and search.state is State.succeeded,
        files=[file for file in _files(job, context) if file.path.startswith(exported)],
        related=[other for other in _related(job, context) if other.pick == arch_id],
        formats=list(FORMATS),
    )


@router.post("/retrain")
def retrain(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Train the chosen networks: a job for each."""
    return _begin(Kind.retrain, job, _requests(form), token, context)


@router.post("/attention")
def attention(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Look into the omni layers of the chosen networks: a job for each."""
    return _begin(Kind.attention, job, _requests(form), token, context)


@router.post("/export")
def export(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Export the chosen networks: a job for each."""
    wanted = [_export_request(one, form) for one in _requests(form)]
    return _begin(Kind.export, job, wanted, token, context)


def _begin(
    kind: Kind, job: Job, wanted: Sequence[NetworkRequest], token: Token, context: Context
) -> Response:
    """Add all jobs or none, and go on to the only one, or to the search, which names them all."""
    for one in wanted:
        follow_ups.checked_network(kind, job, one, context)
    made = [follow_ups.begin(kind, job, one, token, context)[0] for one in wanted]
    target = made[0].id if len(made) == 1 else job.id
    return RedirectResponse(f"/jobs/{target}", status_code=303)


def _export_request(given: NetworkRequest, form: Form) -> ExportRequest:
    chosen: dict[str, Any] = {
        name: form[name][0] for name in ("format", "weights") if form.get(name)
    }
    try:
        return ExportRequest(pick=given.pick, **chosen)
    except ValidationError as error:
        raise ProblemError(422, str(error.errors(include_url=False)[0]["msg"])) from error


def _requests(form: Form) -> list[NetworkRequest]:
    """What the ticked networks of a form ask for.

    Raises:
        ProblemError: 422 when none is ticked.
    """
    picks = list(dict.fromkeys(form.get("id", [])))[:MOST_CARDS]
    if not picks:
        raise ProblemError(422, "no network is chosen: tick one in the table of the front")
    try:
        return [NetworkRequest(pick=pick) for pick in picks]
    except ValueError as error:
        raise ProblemError(422, "a network is named by its id") from error


@router.post("/cancel")
def cancel(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Cancel the job."""
    jobs.cancel(job, token, context)
    return RedirectResponse(f"/jobs/{job.id}", status_code=303)


@router.post("/retry")
def retry(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Let it go on where it stopped."""
    jobs.retry(job, token, context)
    return RedirectResponse(f"/jobs/{job.id}", status_code=303)


@router.post("/delete")
def delete(job: AnyJob, token: Submitter, context: InContext, form: Form) -> Response:
    """Delete it with its files."""
    jobs.delete(job, token, context)
    return RedirectResponse("/", status_code=303)
