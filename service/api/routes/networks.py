"""A network of a finished search: jobs that train, look into or export it; and asking it."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Response

from nas.results.networks import nothing_inherited
from nas.run.layout import SUPERNET_FILE, weights_file
from nas.run.omni_views import check_omni
from nas.search.front import FrontEntry
from service.api.dependencies import AnyJob, Context, InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes.results import NetworkPath, folder_of
from service.api.schemas import (
    ExportRequest,
    JobOut,
    NetworkRequest,
    PredictionOut,
    PredictRequest,
)
from service.api.submitting import KNOWN, Key, follow_up, job_response, network_of
from service.api.thread_pools import Route
from service.auth import Token
from service.jobs.states import Job, Kind

router = APIRouter(prefix="/jobs/{job_id}", tags=["networks"], route_class=Route)


@router.post("/retrain", status_code=201, response_model=JobOut, responses=KNOWN)
def retrain(
    job: AnyJob, given: NetworkRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Train a network of a finished search from scratch: a job of its own."""
    return job_response(*begin(Kind.retrain, job, given, token, context, key))


@router.post("/attention", status_code=201, response_model=JobOut, responses=KNOWN)
def attention(
    job: AnyJob, given: NetworkRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Measure what the omni layers of a network look at: a job of its own.

    The weights are those of its retraining where there was one, otherwise the supernet's.
    """
    return job_response(*begin(Kind.attention, job, given, token, context, key))


@router.post("/export", status_code=201, response_model=JobOut, responses=KNOWN)
def export(
    job: AnyJob, given: ExportRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Write a network as a folder that works without the run: a job of its own.

    The folder is `export/ID/FORMAT` among the artifacts of the search. Its outputs were compared
    with those of the run's model before it was there.
    """
    return job_response(*begin(Kind.export, job, given, token, context, key))


@router.post("/architectures/{arch_id}/predict", response_model=PredictionOut)
async def predict(
    job: AnyJob,
    arch_id: NetworkPath,
    given: PredictRequest,
    token: Submitter,
    context: InContext,
) -> PredictionOut:
    """What a network that was trained from scratch says about a picture or a text."""
    ask = partial(_predict, job, arch_id, given, context)
    return await context.thread_pools.trials.run(ask)


def _predict(job: Job, network: str, given: PredictRequest, context: Context) -> PredictionOut:
    folder = folder_of(job, context)
    if not (folder.path / weights_file(network)).is_file():
        raise ProblemError(409, f"{network} is not {folder.spec.trained}: retrain it first")
    return context.spaces.predict(folder, network, given)


def begin(
    kind: Kind,
    job: Job,
    given: NetworkRequest,
    token: Token,
    context: Context,
    key: str | None = None,
) -> tuple[Job, bool]:
    """Add a job about a network.

    Raises:
        ProblemError: as `checked_network` and `follow_up`.
        UsageError: as `checked_network`.
    """
    network = checked_network(kind, job, given, context)
    return follow_up(kind, job, network, given, token, context, key)


def checked_network(kind: Kind, job: Job, given: NetworkRequest, context: Context) -> FrontEntry:
    """The network that a request is about, if that can be done with it.

    Raises:
        ProblemError: as `network_of`; 409 when there are no weights to export.
        UsageError: for a network that has no omni layers to look into.
    """
    folder, network = network_of(job, given.pick, context)
    if kind is Kind.attention:
        check_omni(network.architecture, folder.spec.space.model.omni_span)
    if isinstance(given, ExportRequest):
        reason = nothing_inherited(folder.spec) or "the supernet was deleted to make room"
        trained = given.weights == "trained"
        file = weights_file(network.id) if trained else SUPERNET_FILE
        if not (folder.path / file).is_file():
            raise ProblemError(
                409,
                f"{network.id} is not {folder.spec.trained}: retrain it first, or export the "
                "weights it inherited"
                if trained
                else f"{reason}; retrain the network, and export that",
            )
    return network
