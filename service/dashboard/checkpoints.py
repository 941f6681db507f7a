"""The page of checkpoints: those that a search may begin with, and the form to upload one."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.dependencies import InContext, Submitter
from service.api.problems import ProblemError
from service.api.routes import uploads
from service.dashboard.pages import Form, Page, page
from supernet.pretrained.folder_files import CHECKPOINT_FILES, WEIGHTS_FILE

router = APIRouter(prefix="/checkpoints", route_class=Page)


@router.get("")
async def checkpoints(request: Request, token: Submitter, context: InContext) -> Response:
    """The checkpoints that the viewer's searches may begin with."""
    found = await uploads.checkpoints(token, context)
    return page(
        request, "checkpoints", checkpoints=found, files=CHECKPOINT_FILES, whole=WEIGHTS_FILE
    )


@router.post("/delete")
def delete(token: Submitter, context: InContext, form: Form) -> Response:
    """Delete one that was uploaded."""
    owner, name = (form.get(field, [""])[0] for field in ("owner", "name"))
    if not name or "/" in name:
        raise ProblemError(422, "no checkpoint is named")
    uploads.delete_checkpoint(f"{owner or token.name}/{name}", token, context)
    return RedirectResponse("/checkpoints", status_code=303)
