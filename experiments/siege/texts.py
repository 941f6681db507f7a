"""Attacks by odd texts: markup in titles, NUL in queries, an origin that is none."""

from __future__ import annotations

import subprocess

from experiments.siege.attack import Attack, Finding, refused, survived
from experiments.siege.ground import ADMIN, MALLORY, Ground, Target
from experiments.siege.job import QUICK

TITLES = ("bug [/bold] x", "[link=http://a.invalid]b[/link]", "<b>bold</b>", "[red]", "a\\[b", "]")
NULS = (
    "/?space=%00",
    "/?text=%00&state=%00",
    "/api/v1/jobs?owner=%00",
    "/api/v1/jobs?owner=a%00b&space=digits",
    "/api/v1/jobs?space=%00",
    "/api/v1/jobs?text=%00",
    "/api/v1/jobs/%00",
    "/api/v1/spaces/%00",
    "/compare?job=%00",
    "/?owner=%ff&space=%ed%a0%80",
)
ORIGINS = ("http://[", "http://]", "http://[::1", "//", "http://127.0.0.1:99999999", "null", "\x80")


def markup(ground: Ground) -> Finding:
    """Titles with markup of terminals and of pages; `nas jobs` and the dashboard show them."""
    for title in TITLES:
        ground.submitted(MALLORY, QUICK, title=title)
    reach = {
        "NAS_SERVER": f"http://127.0.0.1:{ground.port}",
        "NAS_TOKEN": ground.tokens[ADMIN],
        "COLUMNS": "200",
    }
    problems = []
    try:
        shown = ground.service.command("jobs", **reach)
        problems += [f"nas jobs does not show {t!r}" for t in TITLES if t not in shown]
    except subprocess.CalledProcessError as error:
        problems.append(f"nas jobs ends with {error.returncode}")
    page = ground.ask(MALLORY, "GET", "/")
    if TITLES[2].encode() in page.body:
        problems.append("the dashboard takes a title for HTML")
    return survived([page.status], problems)


def nul(target: Target) -> Finding:
    """NUL, and bytes that are no UTF-8, in queries and paths."""
    return survived([target.ask(ADMIN, "GET", path).status for path in NULS])


def origins(target: Target) -> Finding:
    """Changes from pages whose origin is broken."""
    wanted = [target.ask(MALLORY, "POST", "/api/v1/jobs", b"{}", {"Origin": o}) for o in ORIGINS]
    return refused([answer.status for answer in wanted], ("400", "403"))


ATTACKS = (
    Attack("markup", "titles with rich and HTML markup", markup),
    Attack("nul", "NUL and broken UTF-8 in queries and paths", nul),
    Attack("origins", "origins such as http://[", origins),
)
