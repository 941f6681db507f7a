"""Jobs about one network of a finished search: train it, look into its omni layers, export it."""

from __future__ import annotations

from fastapi import APIRouter, Response

from nas.run.layout import SUPERNET_FILE, weights_file
from nas.run.omni_views import check_omni
from nas.search.front import FrontEntry
from service.access import AnyJob, Context, InContext, Submitter
from service.auth import Token
from service.jobs.states import Job, Kind
from service.lanes import Route
from service.problems import ProblemError
from service.schemas import ExportRequest, JobOut, NetworkRequest
from service.submitting import KNOWN, Key, follow_up, network_of, told

router = APIRouter(prefix="/jobs/{job_id}", tags=["networks"], route_class=Route)


@router.post("/retrain", status_code=201, response_model=JobOut, responses=KNOWN)
def retrain(
    job: AnyJob, given: NetworkRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Train a network of a finished search from scratch: a job of its own."""
    return told(*begin_retraining(job, given, token, context, key))


def begin_retraining(
    job: Job, given: NetworkRequest, token: Token, context: Context, key: str | None = None
) -> tuple[Job, bool]:
    """Add the job of a retraining.

    Raises:
        ProblemError: as `network_of` and `follow_up`.
    """
    _, network = network_of(job, given.pick, context)
    return follow_up(Kind.retrain, job, network, given, token, context, key)


@router.post("/attention", status_code=201, response_model=JobOut, responses=KNOWN)
def attention(
    job: AnyJob, given: NetworkRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Measure what the omni layers of a network look at: a job of its own.

    The weights are those of its retraining where there was one, otherwise the supernet's.
    """
    return told(*begin_looking(job, given, token, context, key))


def begin_looking(
    job: Job, given: NetworkRequest, token: Token, context: Context, key: str | None = None
) -> tuple[Job, bool]:
    """Add the job of looking into a network's omni layers.

    Raises:
        ProblemError: as `network_of` and `follow_up`.
        UsageError: for a network that has none to look into.
    """
    network = with_omni_layers(job, given, context)
    return follow_up(Kind.attention, job, network, given, token, context, key)


def with_omni_layers(job: Job, given: NetworkRequest, context: Context) -> FrontEntry:
    """The network that a request is about, if there is something to look into."""
    folder, network = network_of(job, given.pick, context)
    check_omni(network.architecture, folder.spec.space.model.omni_span)
    return network


@router.post("/export", status_code=201, response_model=JobOut, responses=KNOWN)
def export(
    job: AnyJob, given: ExportRequest, token: Submitter, context: InContext, key: Key = None
) -> Response:
    """Write a network as a folder that works without the run: a job of its own.

    The folder is `export/ID/FORMAT` among the artifacts of the search. Its outputs were compared
    with those of the run's model before it was there.
    """
    return told(*begin_export(job, given, token, context, key))


def begin_export(
    job: Job, given: ExportRequest, token: Token, context: Context, key: str | None = None
) -> tuple[Job, bool]:
    """Add the job of an export.

    Raises:
        ProblemError: as `network_of` and `follow_up`; 409 when there are no such weights.
    """
    network = with_weights(job, given, context)
    return follow_up(Kind.export, job, network, given, token, context, key)


def with_weights(job: Job, given: ExportRequest, context: Context) -> FrontEntry:
    """The network that a request is about, if the weights that it asks for are there."""
    folder, network = network_of(job, given.pick, context)
    trained = given.weights == "trained"
    file = weights_file(network.id) if trained else SUPERNET_FILE
    if not (folder.path / file).is_file():
        raise ProblemError(
            409,
            f"{network.id} is not trained from scratch: retrain it first, or export the weights "
            "it inherited"
            if trained
            else "the supernet was deleted to make room; retrain the network, and export that",
        )
    return network
