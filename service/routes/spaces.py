"""The search spaces of the server, and a check for those of others."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Response
from fastapi.concurrency import run_in_threadpool

from nas.request.spec import SpaceSource
from search_spaces.errors import NasError
from search_spaces.space import SearchSpace
from service.access import AnyRole, InContext
from service.catalog import Catalog
from service.job_json import as_json
from service.problems import ProblemError
from service.schemas import SlotOut, SpaceOut
from service.specs import read_space

router = APIRouter(prefix="/spaces", tags=["spaces"])


def space_out(space: SearchSpace, *, whole: bool = True) -> SpaceOut:
    """What is told of a space; with its genes only when it is looked at alone."""
    dataset = space.data.get("dataset")
    return SpaceOut(
        name=space.name,
        task=space.task,
        description=space.description,
        dataset=dataset if isinstance(dataset, str) else None,
        size=str(space.size),
        digest=space.digest,
        genes=[
            SlotOut(
                name=slot.name,
                gene=slot.gene,
                stack=slot.stack,
                layer=slot.layer,
                choices=list(slot.choices),
            )
            for slot in (space.slots if whole else ())
        ],
    )


@router.get("", response_model=list[SpaceOut])
def spaces(token: AnyRole, context: InContext) -> Response:
    """The spaces that a search may name."""
    found = context.catalog.readable_spaces()
    return as_json([space_out(space, whole=False) for space in found])


@router.get("/{name}", response_model=SpaceOut)
def space(
    token: AnyRole,
    context: InContext,
    name: Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")],
) -> Response:
    """One space with its genes."""
    try:
        return as_json(space_out(context.catalog.space(name)))
    except NasError as error:
        raise ProblemError(404, str(error)) from error


@router.post("/check", response_model=SpaceOut)
async def check(given: SpaceSource, token: AnyRole, context: InContext) -> SpaceOut:
    """Check a space, or a registered one with fewer choices: how many networks remain."""
    if given.space_toml is not None:
        return await context.lanes.spaces.run(partial(context.spaces.check, given))
    return await run_in_threadpool(_smaller, given, context.catalog)


def _smaller(given: SpaceSource, catalog: Catalog) -> SpaceOut:
    return space_out(read_space(given, catalog))
