"""Device profiles: timings that searches on this server can use again."""

from __future__ import annotations

import tempfile
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Body, Response

from latency.profile import DeviceProfile, open_profile, read_profile
from search_spaces.errors import DataError
from service.access import Admin, AnyRole, InContext
from service.lanes import Route
from service.problems import ProblemError
from service.schemas import ProfileOut
from service.settings import Settings

router = APIRouter(prefix="/profiles", tags=["profiles"], route_class=Route)


def _out(profile: DeviceProfile) -> ProfileOut:
    header = profile.header
    return ProfileOut(
        id=header.digest[:16],
        device=header.device.to_json(),
        label=header.device.label,
        workload=header.workload.to_json(),
        settings=header.settings_digest,
        networks=len(profile),
    )


@router.get("", response_model=list[ProfileOut])
def profiles(token: AnyRole, context: InContext) -> list[ProfileOut]:
    """The device profiles of the server."""
    found = []
    for file in sorted(_folder(context.settings).glob("*.jsonl")):
        try:
            found.append(_out(read_profile(file)))
        except DataError:
            continue  # one damaged file must not hide the others
    return found


@router.post(
    "",
    status_code=201,
    response_model=ProfileOut,
    responses={200: {"model": ProfileOut, "description": "Timings were added to a known profile."}},
)
def add(
    token: Admin,
    context: InContext,
    response: Response,
    text: Annotated[str, Body(media_type="text/plain", description="The file, line by line.")],
) -> ProfileOut:
    """Add the timings of a profile; a network that is timed here already keeps its value."""
    folder = _folder(context.settings)
    folder.mkdir(parents=True, exist_ok=True)
    given = _read(text)
    file = folder / f"{given.header.digest[:16]}.jsonl"
    new = not file.exists()
    profile = open_profile(file, given.header)
    profile.record(list(given.entries.values()))
    if not new:
        response.status_code = 200
    return _out(profile)


def _read(text: str) -> DeviceProfile:
    with tempfile.TemporaryDirectory() as scratch:
        file = FilePath(scratch) / "profile"
        file.write_text(text, encoding="utf-8")
        try:
            return read_profile(file)
        except DataError as error:
            message = str(error).replace(str(file), "the profile")
            raise ProblemError(422, message.partition("; delete")[0], "/") from error


def _folder(settings: Settings) -> FilePath:
    return settings.cache / "profiles"
