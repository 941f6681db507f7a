"""Answers that need not be sent again to who has them already."""

from __future__ import annotations

import base64
import hashlib

from fastapi import Request, Response


def tagged(request: Request, body: bytes, media_type: str, keep: str) -> Response:
    """An answer with the tag of its content, or 304 where the client has it.

    Args:
        request: it answers.
        body: the content.
        media_type: of the content.
        keep: the header ``Cache-Control``.
    """
    tag = base64.urlsafe_b64encode(hashlib.sha256(body).digest()[:18]).decode()
    headers = {"ETag": f'"{tag}"', "Cache-Control": keep}
    known = request.headers.get("if-none-match", "")[:1000]
    if any(one.strip().removeprefix("W/") == headers["ETag"] for one in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)
