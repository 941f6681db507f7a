"""Upload checkpoints: announce the files, send each, finish; see and delete what is there."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.requests import ClientDisconnect

from service.api.dependencies import AnyRole, Context, InContext, Submitter
from service.api.problems import ProblemError
from service.api.schemas import (
    CheckpointOut,
    UploadedFileOut,
    UploadOut,
    UploadRequest,
    Word,
)
from service.api.thread_pools import Route
from service.auth import Token
from service.uploads import Part, Uploaded

PIECE = 2**20  # bytes that are written at once
RECEIVING = 32  # files of all owners at once
AGAIN = {"Retry-After": "5"}
OCTETS = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

UploadPath = Annotated[str, Path(pattern="^[0-9a-f]{20}$", description="Id of an upload.")]

router = APIRouter(tags=["checkpoints"], route_class=Route)


@router.get("/checkpoints", response_model=list[CheckpointOut])
async def checkpoints(token: AnyRole, context: InContext) -> list[CheckpointOut]:
    """The checkpoints that a search may begin with: the server's, and those that were uploaded.

    Administrators see everybody's; a request names another owner's as `OWNER/NAME`.
    """
    theirs = await context.thread_pools.spaces.run(context.spaces.checkpoints)
    seen = partial(context.uploads.seen_by, token)
    return [*theirs, *map(CheckpointOut.uploaded, await context.thread_pools.uploads.run(seen))]


@router.delete("/checkpoints/{name}", status_code=204)
def delete(
    name: Word,
    token: Submitter,
    context: InContext,
    owner: Annotated[str | None, Query(max_length=64, description="Yours unless given.")] = None,
) -> None:
    """Delete a checkpoint that was uploaded, unless a job needs it that has not ended."""
    delete_checkpoint(name if owner is None else f"{owner}/{name}", token, context)


def delete_checkpoint(name: str, token: Token, context: Context) -> None:
    """Delete an uploaded checkpoint that the token may see.

    Raises:
        ProblemError: 404 when there is none, 409 while a job needs it.
    """
    found = context.uploads.find(token, name)
    if found is None:
        raise ProblemError(404, f"no checkpoint {name[:100]!r} was uploaded")
    _check_unused(found, context)
    context.uploads.delete(found)


def _check_unused(one: Uploaded, context: Context) -> None:
    needing = context.store.jobs.needing(one.folder)
    if needing:
        raise ProblemError(
            409,
            f"the job {needing[0]} needs the checkpoint {one.name} and has not ended: cancel it, "
            "or wait for its end",
        )


@router.post("/uploads", status_code=201, response_model=UploadOut)
def begin(given: UploadRequest, token: Submitter, context: InContext) -> UploadOut:
    """Announce a checkpoint: its name, and the names and sizes of all its files.

    Send each file then, and finish. What is not finished is deleted after a while.
    """
    if given.name in context.catalog.checkpoint_names():
        raise ProblemError(
            409, f"the server has a checkpoint named {given.name}: choose another name", "/name"
        )
    return UploadOut.of(context.uploads.begin(token.name, given.name, given.files))


@router.put(
    "/uploads/{upload}/files/{file:path}",
    response_model=UploadedFileOut,
    openapi_extra=OCTETS,
)
async def receive(
    request: Request, upload: UploadPath, file: str, token: Submitter, context: InContext
) -> UploadedFileOut:
    """Send one of the announced files, as it is; again, if need be."""
    run = context.thread_pools.uploads.run
    async with place_to_send(context, token):
        part = await run(partial(context.uploads.receive, token.name, upload, file))
        try:
            return await _write(request, part, file, context)
        finally:
            await run(part.close)


async def _write(request: Request, part: Part, name: str, context: Context) -> UploadedFileOut:
    await write_pieces(request, part.write, context)
    sha256 = await context.thread_pools.uploads.run(part.keep)
    return UploadedFileOut(name=name, bytes=part.written, sha256=sha256)


async def write_pieces(request: Request, write: Callable[[bytes], None], context: Context) -> None:
    """Write the body of a request as it comes, also of one that breaks off.

    Args:
        request: that brings a file, or a part of one.
        write: bytes at the end of what came before.
        context: of the application.

    Raises:
        ProblemError: 400 when its client leaves.
    """
    run, held, left = context.thread_pools.uploads.run, bytearray(), False
    try:
        async for piece in request.stream():
            held += piece
            if len(held) >= PIECE:
                await run(partial(write, bytes(held)))
                held.clear()
    except ClientDisconnect:
        left = True
    await run(partial(write, bytes(held)))
    if left:
        raise ProblemError(400, "the connection ended before the file was whole")


@router.post("/uploads/{upload}/finish", status_code=201, response_model=CheckpointOut)
async def finish(upload: UploadPath, token: Submitter, context: InContext) -> CheckpointOut:
    """Read the checkpoint, once all files have come; from then on it can be named.

    One that cannot be used is deleted, and the answer says what is wrong with it. On a busy machine
    the answer is 503, and the files stay for another try.
    """
    async with place_to_send(context, token):
        done = partial(context.uploads.finish, token.name, upload, context.spaces.check_upload)
        return CheckpointOut.uploaded(await context.thread_pools.finishing.run(done))


@router.delete("/uploads/{upload}", status_code=204)
def give_up(upload: UploadPath, token: Submitter, context: InContext) -> None:
    """Give an upload up, with the files that have come."""
    context.uploads.drop(token.name, upload)


@contextlib.asynccontextmanager
async def place_to_send(context: Context, token: Token) -> AsyncIterator[None]:
    """One of the few places for those who send files.

    Raises:
        ProblemError: 429 when the owner has no further one, 503 when there is none.
    """
    places = context.receiving
    if places.total >= RECEIVING:
        raise ProblemError(503, "too many files are just being sent; try again", headers=AGAIN)
    if not places.enter(token.name):
        raise ProblemError(
            429, "two files of yours are just being sent; send others after them", headers=AGAIN
        )
    try:
        yield
    finally:
        places.leave(token.name)
