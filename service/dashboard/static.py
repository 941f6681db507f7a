"""Style and scripts, under names that change with their content, so that they can be kept long."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response

from service.api.problems import ProblemError

LONG = "public, max-age=31536000, immutable"
TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
NAMES = ("dashboard.css", "dashboard.js", "charts.js", "plotly.js")

router = APIRouter()


@cache
def _content(name: str) -> bytes:
    from nas.report import page  # brings along what plots reports

    own = resources.files("service.dashboard").joinpath("static")
    match name:
        case "dashboard.css":
            text = page.part("page.css") + own.joinpath(name).read_text("utf-8")
        case "charts.js":
            text = page.part("page.js")
        case "plotly.js":
            text = page.plotly_source()
        case _:
            text = own.joinpath(name).read_text("utf-8")
    return text.encode()


@cache
def _packed(name: str) -> bytes:
    return gzip.compress(_content(name), mtime=0)


@cache
def address_of(name: str) -> str:
    """Where a file of `NAMES` is served."""
    stem, _, ending = name.partition(".")
    return f"/static/{stem}-{hashlib.sha256(_content(name)).hexdigest()[:16]}.{ending}"


@router.get("/static/{file}")
def static(file: str, request: Request) -> Response:
    """A script or the style sheet; they hold nothing of anybody and need no token."""
    found = [name for name in NAMES if address_of(name) == f"/static/{file}"]
    if not found:
        raise ProblemError(404, f"there is no file {file[:100]!r}; load the page again")
    headers = {"Cache-Control": LONG, "Vary": "Accept-Encoding"}
    body = _content(found[0])
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = _packed(found[0]), "gzip"
    return Response(body, media_type=TYPES[file.rpartition(".")[2]], headers=headers)
