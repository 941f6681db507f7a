"""Upload data: announce a file, send its bytes in parts, have it checked; see and delete it."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from nas.request.fields import LINE, NUMERIC
from nas.request.resolve import blaming
from search_spaces.errors import DataError
from service.api.dependencies import AnyRole, Context, InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes.uploads import OCTETS, UploadPath, place_to_send, write_pieces
from service.api.schemas import Word
from service.api.specs import refusing
from service.api.thread_pools import Route
from service.auth import Token
from service.data_uploads import DataUpload, Findings
from service.uploads import Uploaded
from service.wording import for_programs
from supernet.data.manifest import ColumnRole, Manifest, SplitRecord, read_manifest

Task = Literal["classification", "language_modelling", "translation", "embedding"]

router = APIRouter(prefix="/data", tags=["datasets"], route_class=Route)


ColumnName = Annotated[str, Field(min_length=1, max_length=200, pattern=LINE)]


class DataOptions(BaseModel):
    """What a file of data is for, and how it is read, as `nas data prepare` takes it."""

    model_config = ConfigDict(extra="forbid")

    task: Task
    columns: Annotated[
        dict[ColumnRole, ColumnName],
        Field(description="Role → the column that holds it, where it has no usual name."),
    ] = {}
    group_by: Annotated[
        ColumnName | None,
        Field(description="A column of groups, such as authors, that are held out whole."),
    ] = None
    image_size: Annotated[
        int | None,
        Field(ge=1, le=1024, description="Side that pictures are scaled to."),
        NUMERIC,
    ] = None
    tokenizer: Annotated[
        str | None,
        Field(
            min_length=1,
            max_length=200,
            pattern=LINE,
            description="A checkpoint by its name, whose tokenizer is taken and whose embeddings "
            "are learnt: for texts of searches that begin with it.",
        ),
    ] = None
    skip_bad: Annotated[bool, Field(description="Leave out examples that cannot be used.")] = False


class DataRequest(DataOptions):
    """A file of data that is to be uploaded, and what it is for."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "mails", "file": "mails.jsonl", "bytes": 90868, "task": "classification"}
            ]
        },
    )

    name: Word
    file: Annotated[str, Field(max_length=200, pattern=LINE)]
    bytes: Annotated[int, Field(ge=0), NUMERIC]


class DataUploadOut(BaseModel):
    """A data set on its way: send the bytes behind `received`, then finish it.

    `state` is ``coming``, ``checking``, ``failed`` or ``lost``; `note` tells more.
    """

    model_config = ConfigDict(from_attributes=True)

    id: str
    name: str
    file: str
    bytes: int
    received: int
    state: str
    note: str

    @classmethod
    def of(cls, one: DataUpload) -> Self:
        """As it stands."""
        return cls.model_validate(replace(one, note=for_programs(one.note)))


class UploadedDataOut(BaseModel):
    """A data set that was uploaded and can be named in a request."""

    name: str
    task: str
    content: str
    bytes: int

    @classmethod
    def of(cls, one: Uploaded) -> Self:
        """As it was found to be."""
        return cls(name=one.name, task=one.task, content=one.family, bytes=one.bytes)


class DataSetOut(UploadedDataOut):
    """A data set that was uploaded, with what `nas data prepare` tells of one.

    `splits` are those of its manifest, `left_out` is what could not be used, with file and line,
    and `ignored` the first of the `num_ignored` things in the file that were not read. `guessed`
    are the columns that were taken for source and target though no name says so.
    """

    splits: dict[str, SplitRecord]
    left_out: list[str]
    ignored: list[str]
    num_ignored: int
    guessed: str


class UploadedDataPage(BaseModel):
    """What somebody has uploaded, and what is on its way."""

    data: list[UploadedDataOut]
    uploads: list[DataUploadOut]


@router.get("", response_model=UploadedDataPage)
def listed(token: AnyRole, context: InContext) -> UploadedDataPage:
    """Your uploaded data sets."""
    mine = [one for one in context.data.seen_by(token) if one.owner == token.name]
    coming = context.data.on_their_way(token.name)
    return UploadedDataPage(
        data=[UploadedDataOut.of(one) for one in mine],
        uploads=[DataUploadOut.of(one) for one in coming],
    )


@router.post("", status_code=201, response_model=DataUploadOut)
def begin(given: DataRequest, token: Submitter, context: InContext) -> DataUploadOut:
    """Announce a file of data. What nobody goes on with for a day is deleted."""
    if given.name in {one.name for one in context.catalog.datasets()}:
        raise ProblemError(
            409, f"the server has a data set named {given.name}: choose another name", "/name"
        )
    request = order_of(given, token, context)
    made = context.data.announce(token.name, given.name, given.file, given.bytes, request)
    return _found(context, token, made.id)


def order_of(given: DataOptions, token: Token, context: Context) -> dict[str, Any]:
    """How `service.data_preparing` is to prepare a file.

    Raises:
        ProblemError: 422 for a checkpoint that the token's owner has not got.
    """
    order = given.model_dump(include=set(DataOptions.model_fields))
    if given.tokenizer is not None:
        with refusing(), blaming("tokenizer"):
            folder = context.catalog.seen_by(token).checkpoint_folder(given.tokenizer)
        order["checkpoint"] = str(folder)
    return order


@router.get("/{upload}", response_model=DataUploadOut)
def show(upload: UploadPath, token: AnyRole, context: InContext) -> DataUploadOut:
    """How far an upload is."""
    return _found(context, token, upload)


def _found(context: Context, token: Token, upload: str) -> DataUploadOut:
    found: list[DataUpload] = context.data.on_their_way(token.name)
    for one in found:
        if one.id == upload:
            return DataUploadOut.of(one)
    raise context.data.gone(upload)


@router.put(
    "/{upload}/content",
    response_model=DataUploadOut,
    openapi_extra=OCTETS,
)
async def receive(
    request: Request,
    upload: UploadPath,
    token: Submitter,
    context: InContext,
    offset: Annotated[int, Query(ge=0, description="Of the first byte: `received`.")] = 0,
) -> DataUploadOut:
    """Send a part of the file, or all of it; what has come of a part that breaks off is kept."""
    run, length = context.thread_pools.uploads.run, int(request.headers.get("content-length", 0))
    async with place_to_send(context, token):
        part = await run(partial(context.data.part, token.name, upload, offset, length))
        try:
            await write_pieces(request, part.write, context)
        finally:
            await run(part.close)
    return await run(partial(_found, context, token, upload))


@router.post("/{upload}/finish", status_code=202, response_model=DataUploadOut)
def finish(
    upload: UploadPath, token: Submitter, context: InContext, given: DataOptions | None = None
) -> DataUploadOut:
    """Have the file checked and prepared, once all of it has come; `show` tells how far that is.

    With options it is prepared so, whatever was announced, also when it could not be used as that.
    """
    order = None if given is None else order_of(given, token, context)
    context.data.start(token.name, upload, order)
    return _found(context, token, upload)


@router.delete("/{upload}", status_code=204)
def give_up(upload: UploadPath, token: Submitter, context: InContext) -> None:
    """Give an upload up, or forget one that could not be used."""
    context.data.dismiss(token.name, upload)


@router.get("/sets/{name}", response_model=DataSetOut)
def data_set(name: Word, token: AnyRole, context: InContext) -> DataSetOut:
    """What a data set that you uploaded holds, and what of the file it does not."""
    one, manifest, findings = found_data(name, token, context)
    facts = UploadedDataOut.of(one).model_dump() | asdict(findings.told(for_programs))
    return DataSetOut(**facts, splits=manifest.splits)


def found_data(name: str, token: Token, context: Context) -> tuple[Uploaded, Manifest, Findings]:
    """One of the token's own data sets, its manifest, and what it does not hold of its file.

    Raises:
        ProblemError: 404 when there is none, 409 when it cannot be read.
    """
    found = _own(name, token, context)
    try:
        return found, read_manifest(found.folder), context.data.findings(found)
    except DataError:
        raise ProblemError(409, f"{found.name} is damaged: upload it anew") from None


@router.delete("/sets/{name}", status_code=204)
def delete(name: Word, token: Submitter, context: InContext) -> None:
    """Delete a data set that was uploaded, unless a job needs it that has not ended."""
    delete_data(name, token, context)


def delete_data(name: str, token: Token, context: Context) -> None:
    """Delete one of the token's own data sets.

    Raises:
        ProblemError: 404 when there is none, 409 while a job needs it.
    """
    found = _own(name, token, context)
    needing = context.store.jobs.needing(found.folder)
    if needing:
        raise ProblemError(
            409,
            f"the job {needing[0]} needs the data set {found.name} and has not ended: cancel it, "
            "or wait for its end",
        )
    context.data.delete(found)


def _own(name: str, token: Token, context: Context) -> Uploaded:
    found = context.data.find(token, name)
    if found is None:
        raise ProblemError(404, f"no data set {name[:100]!r} was uploaded")
    return found
