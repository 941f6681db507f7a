"""The pages of data: what a search may be made with, what is in it, and a form to upload more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from nas.request.fields import first_problem
from search_spaces.wording import mark
from service.api.dependencies import AnyRole, InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes.data import DataOptions, Task, delete_data, found_data, order_of
from service.dashboard.pages import Form, Page, page
from service.dashboard.wording import COLUMNS, LABELS, OF_TASKS, no_space_for
from service.data_uploads import ENDINGS
from supernet.data.manifest_tables import (
    class_sheet,
    shared_examples,
    split_sheet,
    untold_classes,
)

COLUMN = "column."  # how fields of the form begin that name one
SHOWN = 10  # of what was not read; how many that is stands beside

router = APIRouter(prefix="/data", route_class=Page)


@router.get("")
def data(request: Request, token: Submitter, context: InContext) -> Response:
    """The data sets that the viewer's searches may name, and uploads on their way."""
    mine = {one.name: one for one in context.data.seen_by(token) if one.owner == token.name}
    coming = context.data.on_their_way(token.name)
    return page(
        request,
        "data",
        datasets=sorted(
            context.catalog.seen_by(token).datasets(), key=lambda one: one.name not in mine
        ),
        mine=mine,
        coming=coming,
        columns=COLUMNS,
        labels=LABELS,
        endings=", ".join(ENDINGS),
        moving=any(one.state == "checking" for one in coming),
        most_bytes=context.settings.upload_data_bytes,
        DataOptions=DataOptions,
        all_tasks=get_args(Task),
        of_tasks=OF_TASKS,
        checkpoints=context.catalog.seen_by(token).checkpoint_names(),
    )


@router.get("/sets/{name}")
def data_set(request: Request, name: str, token: AnyRole, context: InContext) -> Response:
    """What one of the viewer's data sets holds, as `nas data prepare` tells it."""
    one, manifest, findings = found_data(name, token, context)
    catalog = context.catalog.seen_by(token)
    dataset = next(each for each in catalog.datasets() if each.name == name)
    sheets = {"Splits": split_sheet(manifest)}
    if manifest.splits["train"].classes:
        sheets["Classes"] = class_sheet(manifest)
    return page(
        request,
        "data_set",
        one=one,
        sheets=sheets,
        findings=findings,
        most_ignored=SHOWN,
        notes=[*untold_classes(manifest), *shared_examples(manifest)],
        lacking=None if catalog.spaces_for(dataset) else no_space_for(dataset),
    )


@router.post("/delete")
def delete(token: Submitter, context: InContext, form: Form) -> Response:
    """Delete a data set that was uploaded, or give an upload up."""
    name, upload = (form.get(field, [""])[0] for field in ("name", "upload"))
    if name:
        delete_data(name, token, context)
    elif upload:
        context.data.dismiss(token.name, upload)
    else:
        raise ProblemError(422, "no data set is named")
    return RedirectResponse("/data", status_code=303)


@router.post("/finish")
def finish(token: Submitter, context: InContext, form: Form) -> Response:
    """Have an upload checked again that could not be used, or whose check was broken off."""
    order = order_of(_options(form), token, context) if "task" in form else None
    context.data.start(token.name, form.get("upload", [""])[0], order)
    return RedirectResponse("/data", status_code=303)


def _options(form: Mapping[str, Sequence[str]]) -> DataOptions:
    """How a file is to be prepared; fields that are left empty are as usual.

    Raises:
        ProblemError: 422 for what cannot be.
    """
    given = {name: values[0] for name, values in form.items() if values[0].strip()}
    task = given.get("task", "")
    columns = {
        role: given[COLUMN + role]
        for role, (_, tasks) in COLUMNS.items()
        if COLUMN + role in given and task in tasks.split()
    }
    asked: dict[str, Any] = {"columns": columns, "skip_bad": "skip_bad" in given}
    others = ["task", "group_by"]
    others += [name for name, tasks in OF_TASKS.items() if task in tasks.split()]
    asked |= {name: given[name] for name in others if name in given}
    try:
        return DataOptions(**asked)
    except ValidationError as error:
        raise ProblemError(422, first_problem(error, DataOptions, mark)) from error
