"""What the server has: search spaces, data sets, timings of devices."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Body, Path, Response
from fastapi.concurrency import run_in_threadpool

from latency.timings import TimingJournal, open_timings, read_timings
from nas.request.spec import SpaceSource
from search_spaces.errors import DataError, NasError
from service.api.catalog import Catalog
from service.api.dependencies import Admin, AnyRole, InContext, Submitter
from service.api.problems import ProblemError
from service.api.schemas import (
    DatasetOut,
    DeviceProfileOut,
    DurationOut,
    EvaluatorOut,
    JobRequest,
    ProfileOut,
    SpaceOut,
)
from service.api.specs import read_space
from service.api.thread_pools import Route
from service.settings import Settings
from service.wording import for_programs

router = APIRouter(route_class=Route)


@router.get("/spaces", tags=["spaces"], response_model=list[SpaceOut])
def spaces(token: AnyRole, context: InContext) -> list[SpaceOut]:
    """The spaces that a search may name."""
    return [SpaceOut.of(space, whole=False) for space in context.catalog.readable_spaces()]


@router.get("/spaces/{name}", tags=["spaces"], response_model=SpaceOut)
def space(
    token: AnyRole,
    context: InContext,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")],
) -> SpaceOut:
    """One space with its genes."""
    try:
        return SpaceOut.of(context.catalog.space(name))
    except NasError as error:
        raise ProblemError(404, error.marked) from error


@router.post("/spaces/check", tags=["spaces"], response_model=SpaceOut)
async def check(given: SpaceSource, token: AnyRole, context: InContext) -> SpaceOut:
    """Check a space, or a registered one with fewer choices: how many networks remain."""
    if given.space_toml is not None:
        return await context.thread_pools.spaces.run(partial(context.spaces.check, given))
    return await run_in_threadpool(_smaller, given, context.catalog)


def _smaller(given: SpaceSource, catalog: Catalog) -> SpaceOut:
    return SpaceOut.of(read_space(given, catalog))


@router.post("/duration", tags=["jobs"], response_model=DurationOut)
async def duration(given: JobRequest, token: Submitter, context: InContext) -> DurationOut:
    """Tell how long a search would take on the machine of this service, without submitting it.

    The first answer for a space takes some seconds, in which single steps of the search are tried;
    the others follow from it. Workers on other machines may be faster or slower.
    """
    found = await context.thread_pools.spaces.run(partial(context.spaces.search, given, token))
    made = await context.thread_pools.trials.run(partial(context.spaces.duration, found))
    return made.model_copy(update={"reason": for_programs(made.reason)})


@router.get("/datasets", tags=["datasets"], response_model=list[DatasetOut])
def datasets(token: AnyRole, context: InContext) -> list[DatasetOut]:
    """The data sets that a search may name."""
    return [
        DatasetOut(
            name=one.name,
            kind=one.kind,
            task=one.task,
            examples=one.examples,
            usable=one.problem is None,
        )
        for one in context.catalog.seen_by(token).datasets()
    ]


@router.get("/device-profiles", tags=["profiles"], response_model=list[DeviceProfileOut])
def device_profiles(token: AnyRole, context: InContext) -> list[DeviceProfileOut]:
    """The device profiles that a search may name, files of `nas profile` on the server."""
    return [DeviceProfileOut(name=name) for name in context.catalog.profile_names()]


@router.get("/evaluators", tags=["evaluators"], response_model=list[EvaluatorOut])
def evaluators(token: AnyRole, context: InContext) -> list[EvaluatorOut]:
    """The evaluators that a search of genes may name; the administrator says what they are."""
    return [EvaluatorOut(name=name) for name in context.catalog.evaluator_names()]


def _profile_out(profile: TimingJournal) -> ProfileOut:
    header = profile.header
    return ProfileOut(
        id=header.digest[:16],
        device=header.device.to_json(),
        label=header.device.label,
        workload=header.workload.to_json(),
        settings=header.settings_digest,
        networks=len(profile),
    )


@router.get("/profiles", tags=["profiles"], response_model=list[ProfileOut])
def profiles(token: AnyRole, context: InContext) -> list[ProfileOut]:
    """The timings that the server keeps between runs: one record for a device and a workload.

    They are not the device profiles that a request may name: `/device-profiles` lists those.
    """
    found = []
    for file in sorted(_profiles_folder(context.settings).glob("*.jsonl")):
        try:
            found.append(_profile_out(read_timings(file)))
        except DataError:
            continue  # one damaged file must not hide the others
    return found


@router.post(
    "/profiles",
    tags=["profiles"],
    status_code=201,
    response_model=ProfileOut,
    responses={200: {"model": ProfileOut, "description": "Timings were added to a known record."}},
)
def add(
    token: Admin,
    context: InContext,
    response: Response,
    text: Annotated[str, Body(media_type="text/plain", description="The file, line by line.")],
) -> ProfileOut:
    """Add timings of another cache; a network that is timed here already keeps its own."""
    folder = _profiles_folder(context.settings)
    folder.mkdir(parents=True, exist_ok=True)
    given = _read_profile(text)
    file = folder / f"{given.header.digest[:16]}.jsonl"
    new = not file.exists()
    profile = open_timings(file, given.header)
    profile.record(list(given.entries.values()))
    if not new:
        response.status_code = 200
    return _profile_out(profile)


def _read_profile(text: str) -> TimingJournal:
    with tempfile.TemporaryDirectory() as scratch:
        file = FilePath(scratch) / "profile"
        file.write_text(text, encoding="utf-8")
        try:
            return read_timings(file)
        except DataError as error:
            message = str(error).replace(str(file), "the profile")
            raise ProblemError(422, message.partition("; delete")[0], "/") from error


def _profiles_folder(settings: Settings) -> FilePath:
    return settings.cache / "profiles"
