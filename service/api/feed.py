"""The Atom feed of jobs (RFC 4287).

Readers of feeds know addresses, not tokens, so the address has a key that is made of the token and
opens nothing but the feed. It ends with its token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from xml.etree import ElementTree

from service.jobs.states import Job
from service.wording import for_programs

ATOM = "http://www.w3.org/2005/Atom"
MEDIA_TYPE = "application/atom+xml; charset=utf-8"
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def atom(reader: str, whose: str, jobs: Iterable[Job], site: str, address: str) -> bytes:
    """The feed of some jobs, newest first.

    Args:
        reader: who reads it.
        whose: jobs they are, for its title.
        jobs: to tell of.
        site: where the dashboard is, without a slash at its end.
        address: of the feed itself.
    """
    feed = ElementTree.Element("feed", {"xmlns": ATOM})
    entries = [(job, job.ended_at or job.started_at or job.created_at) for job in jobs]
    _add(feed, "id", f"urn:nas:jobs:{reader}")
    _add(feed, "title", f"Architecture searches of {whose}")
    _add(feed, "updated", _moment(max((changed for _, changed in entries), default=0.0)))
    _add(feed, "link", rel="self", href=address)
    _add(feed, "link", rel="alternate", href=f"{site}/")
    for job, changed in entries:
        entry = ElementTree.SubElement(feed, "entry")
        _add(entry, "id", f"urn:nas:job:{job.id}")
        name = job.title or f"{job.space} {job.preset}"
        _add(
            entry, "title", f"{name}{'' if job.kind == 'search' else f', {job.kind}'}: {job.state}"
        )
        _add(entry, "updated", _moment(changed))
        _add(entry, "published", _moment(job.created_at))
        _add(ElementTree.SubElement(entry, "author"), "name", job.owner)
        _add(entry, "link", rel="alternate", href=f"{site}/jobs/{job.id}")
        for tag in job.tags:
            _add(entry, "category", term=tag)
        told = for_programs(job.error or "")
        _add(entry, "summary", told or f"{job.kind} of {job.space}, {job.state}")
    return bytes(ElementTree.tostring(feed, encoding="utf-8", xml_declaration=True))


def _add(parent: ElementTree.Element, name: str, text: str | None = None, **values: str) -> None:
    made = ElementTree.SubElement(parent, name, values)
    made.text = None if text is None else _NO_XML.sub("\ufffd", text)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
