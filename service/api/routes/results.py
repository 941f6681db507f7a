"""What a job has found: front, networks, report, files."""

from __future__ import annotations

import csv
import functools
import io
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from anyio.lowlevel import RunVar
from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import FileResponse

from nas.objectives import Objective
from nas.run.folder import RunFolder
from nas.run.layout import FRONT_FILE, REPORT_FILE, SPEC_FILE, result_file
from nas.run.omni_views import check_omni, read_views
from nas.search.front import Front, FrontEntry, as_rows, read_front
from search_spaces.errors import UsageError
from service.api.dependencies import AnyJob, Context, InContext
from service.api.files import Download, find_artifact, list_artifacts
from service.api.problems import ProblemError
from service.api.schemas import (
    ArchitectureOut,
    ArtifactOut,
    BaselineOut,
    EntryOut,
    FrontOut,
    ObjectiveOut,
    OmniViewsOut,
)
from service.jobs.states import Job

if TYPE_CHECKING:
    from service.api.run_cache import RunView

T = TypeVar("T")

READING = 2  # threads that read runs
# The report brings its own scripts and pictures along; it may do nothing else, and nothing with
# the rights of this site.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data: blob:; "
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'"
)

NetworkPath = Annotated[str, Path(pattern="^[0-9a-f]{12}$", description="Id of a network.")]

router = APIRouter(prefix="/jobs/{job_id}", tags=["results"])


_reading: RunVar[CapacityLimiter] = RunVar("_reading")


def reads_runs(endpoint: Callable[..., T]) -> Callable[..., Awaitable[T]]:
    """A route that reads whole runs, which may take seconds, in one of few threads for that.

    Others find a thread then however many of these are asked for, and no more runs than that are
    in memory as a whole.
    """

    @functools.wraps(endpoint)
    async def waiting(**given: Any) -> T:
        threads = _reading.get(None)
        if threads is None:
            threads = CapacityLimiter(READING)
            _reading.set(threads)
        return await anyio.to_thread.run_sync(partial(endpoint, **given), limiter=threads)

    return waiting


def folder_of(job: Job, context: Context) -> RunFolder:
    """The run folder of a job.

    Raises:
        ProblemError: 404 when there is none yet, or none any more.
    """
    path = context.settings.runs / job.run
    if not (path / SPEC_FILE).is_file():
        gone = job.started_at is not None
        raise ProblemError(
            404,
            f"the job {job.id} has no files: "
            + ("they were deleted to make room" if gone else "it has not begun"),
        )
    return RunFolder.open(path)


@router.get(
    "/front",
    response_model=FrontOut,
    responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}},
)
@reads_runs
def front(
    job: AnyJob,
    context: InContext,
    form: Annotated[Literal["json", "csv"] | None, Query(alias="format")] = None,
    accept: Annotated[str, Header(max_length=1000)] = "*/*",
) -> Any:
    """The Pareto front, of what was measured so far while the search goes on.

    Until the best networks are timed at the end, latency and memory may stand under `predicted`.

    As CSV with `?format=csv` or `Accept: text/csv`.
    """
    final, objectives, entries = _front_of(folder_of(job, context))
    if form == "csv" or (form is None and _likes_csv(accept)):
        return csv_response(as_rows(entries), f"{job.id}.csv")
    references = final.reference if final else (None,) * len(objectives)
    return FrontOut(
        final=final is not None,
        objectives=[
            ObjectiveOut(**o.to_json(), reference=reference)
            for o, reference in zip(objectives, references, strict=True)
        ],
        front=[_entry(entry) for entry in entries],
        hypervolume=final.hypervolume if final else None,
        baselines=[
            BaselineOut(**_entry(one.entry).model_dump(), roles=list(one.roles))
            for one in (final.baselines if final else ())
        ],
        predicted_for=dict(final.predicted_for) if final else {},
        checkpoint=_entry(final.checkpoint) if final and final.checkpoint else None,
    )


def _likes_csv(accept: str) -> bool:
    """Whether CSV is asked for rather than JSON.

    The larger q-value decides; of two that are equal the type that is named more exactly, and then
    the one that is named first.

    Source: RFC 9110, section 12.5.1.
    """
    csv_rank = _rank("text/csv", accept)
    return csv_rank[0] > 0 and csv_rank > _rank("application/json", accept)


def _rank(kind: str, accept: str) -> tuple[float, int, int]:
    """(q-value, how exactly it is named, how early) of a type; the most exact range counts."""
    found = (-1, 0, 0.0)
    for place, each in enumerate(accept.lower().split(",")):
        name, *parameters = (part.strip() for part in each.split(";"))
        exact = ("*/*", f"{kind.partition('/')[0]}/*", kind)
        if name in exact:
            given = (one.removeprefix("q=") for one in parameters if one.startswith("q="))
            found = max(found, (exact.index(name), -place, _quality(next(given, "1"))))
    exactness, place, quality = found
    return quality, exactness, place


def _quality(text: str) -> float:
    """A q-value; 0 for what is none."""
    return float(text) if re.fullmatch(r"[01](\.\d{0,3})?", text) else 0.0


def _front_of(
    folder: RunFolder,
) -> tuple[Front | None, tuple[Objective, ...], tuple[FrontEntry, ...]]:
    """The result of a run, or what nothing dominates so far."""
    if folder.has(FRONT_FILE):
        front = read_front(folder)
        return front, front.objectives, front.entries
    from service.api.run_cache import cached_run  # brings along what reads runs

    found = cached_run(folder).found
    return found.front, found.objectives, found.entries


@router.get("/architectures/{arch_id}", response_model=ArchitectureOut)
@reads_runs
def architecture(
    job: AnyJob,
    context: InContext,
    arch_id: NetworkPath,
) -> ArchitectureOut:
    """A network that the search has looked at: its layers, costs and scores."""
    from nas.search.doubtful import shortfall

    folder = folder_of(job, context)
    view, entry = _network(job, folder, arch_id)
    members = view.found.front.entries if view.found.front else ()
    result = result_file(arch_id)
    retrained = folder.read_json(result) if folder.has(result) else None
    problem = None
    if retrained is not None:
        asked_epochs = retrained.get("asked_epochs")
        problem = shortfall(folder.spec, entry, retrained.get("valid_loss"), asked_epochs)
    return ArchitectureOut(
        **_entry(entry).model_dump(),
        on_front=any(one.id == arch_id for one in members),
        retrained=retrained,
        problem=problem,
    )


def _network(job: Job, folder: RunFolder, arch_id: str) -> tuple[RunView, FrontEntry]:
    """A network of a run that its search has looked at, and the run.

    Raises:
        ProblemError: 404 when there is none.
    """
    from service.api.run_cache import cached_networks  # brings along what reads runs

    view = cached_networks(folder, [arch_id])
    entry = view.contents.network(arch_id)
    if entry is None:
        raise ProblemError(404, f"the job {job.id} has no network {arch_id}")
    return view, entry


@router.get("/architectures/{arch_id}/attention", response_model=OmniViewsOut)
@reads_runs
def attention(job: AnyJob, context: InContext, arch_id: NetworkPath) -> OmniViewsOut:
    """What the omni layers of a network look at, once a job of `POST …/attention` has ended."""
    folder = folder_of(job, context)
    views = read_views(folder, arch_id)
    if views is not None:
        return OmniViewsOut(**views.to_json())
    _, entry = _network(job, folder, arch_id)
    try:
        check_omni(entry.architecture, folder.spec.space.model.omni_span)
    except UsageError as error:
        raise ProblemError(404, error.marked) from error
    raise ProblemError(
        404,
        f"the omni layers of {arch_id} were not looked into yet; POST "
        f"/api/v1/jobs/{job.run}/attention does so for networks of the final front",
    )


@router.get("/report", response_class=FileResponse)
def report(request: Request, job: AnyJob, context: InContext) -> Response:
    """The report of a finished search, as one page."""
    file = find_artifact(folder_of(job, context).path, REPORT_FILE)
    if file is None:
        raise ProblemError(404, f"the job {job.id} has no report yet")
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Download(request, file, "text/html; charset=utf-8", headers=headers)


@router.get("/artifacts", response_model=list[ArtifactOut])
def artifacts(job: AnyJob, context: InContext) -> list[ArtifactOut]:
    """The files of the job's run."""
    return list_artifacts(folder_of(job, context).path)


@router.get("/artifacts/{path:path}", response_class=FileResponse)
def artifact(request: Request, job: AnyJob, context: InContext, path: str) -> Response:
    """A file of the job's run as it is now, or a range of it; its checksum is in `Repr-Digest`."""
    file = find_artifact(folder_of(job, context).path, path)
    if file is None:
        raise ProblemError(404, f"the job {job.id} has no file {path[:100]!r}")
    return Download(request, file, "application/octet-stream", file.name)


def _entry(entry: FrontEntry) -> EntryOut:
    return EntryOut(
        id=entry.id,
        architecture=entry.network.to_json(),
        measured=dict(entry.measured),
        predicted=dict(entry.predicted),
        doubtful=dict(entry.doubtful),
    )


def csv_response(rows: Sequence[Mapping[str, Any]], name: str) -> Response:
    """Rows with the same columns as a file to keep."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["id", "doubtful"])
    writer.writeheader()
    writer.writerows(rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)
