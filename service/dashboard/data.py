"""The page of data: what a search may be made with, and the form to upload more."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.dependencies import InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes.data import delete_data
from service.dashboard.pages import Form, Page, page
from service.data_uploads import ENDINGS

router = APIRouter(prefix="/data", route_class=Page)


@router.get("")
def data(request: Request, token: Submitter, context: InContext) -> Response:
    """The data sets that the viewer's searches may name, and uploads on their way."""
    mine = {one.name: one for one in context.data.seen_by(token) if one.owner == token.name}
    coming = context.data.on_their_way(token.name)
    return page(
        request,
        "data",
        datasets=context.catalog.seen_by(token).datasets(),
        mine=mine,
        coming=coming,
        endings=", ".join(ENDINGS),
        moving=any(one.state == "checking" for one in coming),
        most_bytes=context.settings.upload_data_bytes,
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
    """Have an upload checked again, whose check the service's end has broken off."""
    context.data.start(token.name, form.get("upload", [""])[0])
    return RedirectResponse("/data", status_code=303)
