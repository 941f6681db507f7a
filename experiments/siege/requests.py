"""Attacks by what is sent: bodies, bytes that are no request, tokens, odd texts."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import search_spaces
from experiments.siege.ground import (
    ADMIN,
    FILES,
    GLUTTON,
    MALLORY,
    PEEPER,
    Attack,
    Finding,
    Ground,
    Target,
    counted,
    refused,
    survived,
)
from experiments.siege.job import QUICK
from experiments.siege.wire import CHUNK, CLOSED, TAKEN, connected, portions, pour, readable

# -- bodies: short to write and long to read ------------------------------------------------------

AT_ONCE = 6
REFUSED = ("413", "422", "429", "503")
DIGITS = (Path(search_spaces.__file__).parent / "library" / "digits.toml").read_text("utf-8")

DOTTED = {
    "a long dotted key behind a quoted =": '"="' + ".a" * 49_000 + " = 1\n",
    "a long dotted key": "a" + ".a" * 49_000 + " = 1\n",
    "a long table header": "[a" + ".a" * 48_000 + "]\n",
    "many quoted keys": '"a"' + '."a"' * 24_000 + " = 1\n",
}
INLINE = {
    "a long dotted key in an inline table": "x = {a" + ".a" * 48_000 + " = 1}\n",
    "inline tables in each other": "x = " + "{a = " * 19_000 + "1" + "}" * 19_000 + "\n",
    "many tables in a table": "x = {" + ", ".join(f"a{n}.b = 1" for n in range(7_000)) + "}\n",
}
SEPARATORS = {
    "U+0085 in a quoted key": '"\u0085=\u0085"' + ".a" * 48_000 + " = 1\n",
    "U+2028 in a quoted key": '"\u2028=\u2028"' + ".a" * 48_000 + " = 1\n",
    "quotes within quotes": "'\"='" + ".a" * 48_000 + " = 1\n",
}


def check(target: Target, text: str) -> str:
    """How a space is answered, as a reader may ask."""
    return target.post(PEEPER, "/spaces/check", {"space_toml": text}).status


def _all_refused(texts: dict[str, str]) -> Callable[[Target], Finding]:
    """Send each text by itself, and the first of them six times at once."""

    def attack(target: Target) -> Finding:
        first = next(iter(texts.values()))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            answers = list(pool.map(lambda _: check(target, first), range(AT_ONCE)))
        return refused([*answers, *(check(target, t) for t in list(texts.values())[1:])], REFUSED)

    return attack


def choices(**lists: Iterable[int]) -> str:
    """The space of the digits with other choices of some genes."""
    lines = []
    for line in DIGITS.splitlines():
        gene = line.partition(" = ")[0]
        lines.append(f"{gene} = {list(lists[gene])}" if gene in lists else line)
    return "\n".join(lines) + "\n"


def many_choices(target: Target) -> Finding:
    """Spaces with as many choices as there is room for, and as many as are allowed."""
    most = range(8, 8008, 8)
    texts = [
        choices(ffn_dim=range(4, 52_000, 4)),
        choices(num_layers=range(1, 15_000)),
        choices(num_layers=range(1, 1001), ffn_dim=most, embed_dim=most),
        choices(num_layers=[1000], num_heads=range(1, 1001), ffn_dim=most, embed_dim=[8]),
    ]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return survived(pool.map(lambda text: check(target, text), texts))


def huge_space(target: Target) -> Finding:
    """A space whose number of networks has more than 4,300 digits, checked and searched."""
    sizes = [range(8, 8008, 8), range(1, 65)]
    text = choices(num_layers=[1, 1000], ffn_dim=sizes[0], num_heads=sizes[1], embed_dim=[8])
    value = {"space_toml": text, "preset": "smoke", "seed": 1}
    return refused([check(target, text), target.post(MALLORY, "/jobs", value).status], REFUSED)


def nested_json(target: Target) -> Finding:
    """JSON that is nested as deep as there is room for, and a number of a million digits."""
    bodies = [b"[" * 900_000, b'{"a":' * 150_000, b'{"seed": ' + b"9" * 900_000 + b"}"]
    answers = [target.ask(MALLORY, "POST", "/api/v1/jobs", body).status for body in bodies]
    return refused(answers, ("400", *REFUSED))


def endless_body(target: Target) -> Finding:
    """A body that comes in chunks and has no end, and one that is longer than it was said to be."""
    head = (
        "POST /api/v1/spaces/check HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {target.tokens[PEEPER]}\r\nContent-Type: application/json\r\n"
    )

    def chunks() -> Iterator[bytes]:
        yield f"{head}Transfer-Encoding: chunked\r\n\r\n".encode()
        piece = b"%x\r\n%s\r\n" % (CHUNK, b" " * CHUNK)
        yield from (piece for _ in range(100_000_000 // CHUNK))

    long = [f"{head}Content-Length: 900000000\r\n\r\n".encode(), *[b" " * CHUNK] * 100]
    answers = [pour(target.port, pieces, target.patience_s) for pieces in (chunks(), long)]
    return refused(answers, ("413", "408", "closed"))


def large_requests(ground: Ground) -> Finding:
    """Jobs whose request is as large as a body may be, most of it blank or a comment."""
    blank = {"settings": {"observations": " " * 900_000 + "40"}, "space": "digits"}
    comment = {"space_toml": DIGITS + "#" + "x" * 90_000}
    before, began = ground.database.megabytes(), time.monotonic()
    answers = []
    for number in range(40):
        value = {**(blank if number % 2 else comment), "preset": "smoke", "seed": 1}
        answers.append(ground.post(GLUTTON, "/jobs", value))
        if time.monotonic() - began > ground.patience_s:
            break
    grown = ground.database.megabytes() - before
    for answer in answers:
        if answer.status == "201":
            ground.ask(GLUTTON, "POST", f"/api/v1/jobs/{json.loads(answer.body)['id']}/cancel")
    longest = max(len(answer.body) for answer in answers) / 1e6
    problems = [f"the database has grown by {grown:.0f} MB"] if grown > MOST_GROWN_MB else []
    problems += [f"an answer has {longest:.1f} MB"] if longest > MOST_ANSWERED_MB else []
    return survived([answer.status for answer in answers], problems)


MOST_GROWN_MB = 10.0
MOST_ANSWERED_MB = 0.2


# -- connections: bytes that never become a request, which need no token --------------------------

START = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
MEGABYTE = 1_000_000
DROPPED = ("400", "408", "413", "431", "503", CLOSED)
HALF_OPEN = FILES + 100  # more than the service may have open
DRIP_S = 0.5  # between two bytes of each of them


def unfinished_header(target: Target) -> Finding:
    """One header of 150 MB that does not end."""
    pieces = [START + b"X-Long: ", *portions(b"x" * 1024, 150 * MEGABYTE)]
    return refused([pour(target.port, pieces, target.patience_s)], DROPPED)


def many_headers(target: Target) -> Finding:
    """A request with 200,000 headers, and one with a single one of 50 MB."""
    many = [START, *(b"X-%06d: y\r\n" % n for n in range(200_000)), b"\r\n"]
    lines = [b"".join(many[at : at + 4_000]) for at in range(0, len(many), 4_000)]
    large = [START + b"X-Long: ", *portions(b"x" * 1024, 50 * MEGABYTE), b"\r\n\r\n"]
    wanted: Iterable[list[bytes]] = (lines, large)
    return refused([pour(target.port, one, target.patience_s) for one in wanted], DROPPED)


def large_headers(target: Target) -> Finding:
    """Twenty connections with 10 MB of header each, at once."""

    def one(_: int) -> str:
        pieces = [START + b"X-Long: ", *portions(b"x" * 1024, 10 * MEGABYTE)]
        return pour(target.port, pieces, target.patience_s)

    with ThreadPoolExecutor(20) as pool:
        return refused(pool.map(one, range(20)), DROPPED)


def slow_headers(target: Target) -> Finding:
    """Half-open requests, more than the service may have files open, that get a byte now and then.

    They come from another address than the ordinary clients.
    """
    return _drip(target, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")


def slow_bodies(target: Target) -> Finding:
    """As many requests whose body of 1,000 bytes comes one by one."""
    head = (
        "POST /api/v1/spaces/check HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {target.tokens[PEEPER]}\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    return _drip(target, head.encode())


def idle_connections(target: Target) -> Finding:
    """As many connections on which nothing is ever sent."""
    return _drip(target, b"")


def _drip(target: Target, head: bytes) -> Finding:
    """Open connections, send them bytes slowly, and see which are left when patience is at its end.

    A service that ends them in time ends all of them; how it says so does not matter.
    """
    deadline = time.monotonic() + 3 * target.patience_s
    with ExitStack() as stack:
        lines = []
        for _ in range(HALF_OPEN):
            with suppress(OSError):
                line = stack.enter_context(connected(target.port, 1.0))
                line.sendall(head)
                lines.append(line)
        opened = len(lines)
        while lines and time.monotonic() < deadline:
            select.select([], [], [], DRIP_S)
            lines = [line for line in lines if _goes_on(line, head)]
        return refused([CLOSED] * (opened - len(lines)) + [TAKEN] * len(lines))


def _goes_on(line: socket.socket, head: bytes) -> bool:
    """Send one more byte of a request that has begun; whether the service still waits for it."""
    try:
        if readable(line):
            return False
        if head:
            line.send(b"x")
    except OSError:
        return False
    return True


# -- tokens: wrong ones, and names of clients that are not true -----------------------------------

WRONG = 40  # twice as many as one address may get wrong in a minute
PROXY = "127.0.0.9"  # which the camps trust
STRANGER = "127.0.0.77"  # whom they do not
GOOD_CLIENT, BAD_CLIENT = "198.51.100.7", "198.51.100.66"
GUESS = {"Authorization": "Bearer nas_0123456789abcdef0123456789abcdef"}
PATH = "/api/v1/jobs"


def wrong_tokens(target: Target) -> Finding:
    """Wrong tokens, and after them a good one from the same address."""
    wrong = [target.ask(None, "GET", PATH, headers=GUESS).status for _ in range(WRONG)]
    good = [target.ask(PEEPER, "GET", PATH).status for _ in range(3)]
    return _judged(wrong, good)


def behind_a_proxy(target: Target) -> Finding:
    """The same through a proxy that says who asks: the guesser is slowed down, others are not."""

    def through(client: str) -> dict[str, str]:
        return {"X-Forwarded-For": client}

    wrong = [
        target.ask(None, "GET", PATH, headers=GUESS | through(BAD_CLIENT), source=PROXY).status
        for _ in range(WRONG)
    ]
    good = [
        target.ask(PEEPER, "GET", PATH, headers=through(name), source=PROXY).status
        for name in (GOOD_CLIENT, BAD_CLIENT)
    ]
    first = target.ask(None, "GET", PATH, headers=GUESS | through(GOOD_CLIENT), source=PROXY)
    found = _judged(wrong, good)
    if first.status != "401":
        problem = f"another client of the proxy is told {first.status} to its first wrong token"
        return Finding(found.told, (*found.problems, problem))
    return found


def false_names(target: Target) -> Finding:
    """Wrong tokens of a client that nobody trusts, which names another client each time."""
    names = [{"X-Forwarded-For": f"203.0.113.{n}"} for n in range(WRONG)]
    wrong = [
        target.ask(None, "GET", PATH, headers=GUESS | name, source=STRANGER).status
        for name in names
    ]
    return _judged(wrong, [target.ask(PEEPER, "GET", PATH, source=STRANGER).status])


def _judged(wrong: list[str], good: list[str]) -> Finding:
    problems = []
    if set(wrong) - {"401", "429"}:
        problems.append(f"wrong tokens got {counted(wrong)}")
    if "429" not in wrong:
        problems.append(f"{len(wrong)} wrong tokens in a row were not slowed down")
    if set(good) != {"200"}:
        problems.append(f"good tokens got {counted(good)}")
    return Finding(f"wrong {counted(wrong)}; good {counted(good)}", tuple(problems))


# -- odd texts: markup in titles, NUL in queries, an origin that is none --------------------------

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
    Attack("dotted-keys", "98 kB of dotted keys in a space, six at once", _all_refused(DOTTED)),
    Attack("inline-tables", "the same inside inline tables", _all_refused(INLINE)),
    Attack("separators", "the same behind quoted line ends of Unicode", _all_refused(SEPARATORS)),
    Attack("many-choices", "spaces with 15,000 choices and layers", many_choices),
    Attack("huge-space", "a space with more than 4,300 digits of networks", huge_space),
    Attack("nested-json", "900,000 brackets, and a number of 900,000 digits", nested_json),
    Attack("endless-body", "bodies far over the limit, with and without a length", endless_body),
    Attack("large-requests", "forty jobs of up to 0.9 MB of blanks and comments", large_requests),
    Attack("unfinished-header", "150 MB of a header that does not end", unfinished_header),
    Attack("many-headers", "200,000 headers, and one of 50 MB", many_headers),
    Attack("large-headers", "twenty connections with 10 MB of header each", large_headers),
    Attack("slow-headers", f"{HALF_OPEN} half-open requests, a byte at a time", slow_headers),
    Attack("slow-bodies", f"{HALF_OPEN} bodies that come a byte at a time", slow_bodies),
    Attack("idle-connections", f"{HALF_OPEN} connections that say nothing", idle_connections),
    Attack("wrong-tokens", "forty wrong tokens, then a good one", wrong_tokens),
    Attack("behind-a-proxy", "the same through a trusted proxy", behind_a_proxy),
    Attack("false-names", "wrong tokens under forwarded names, without a proxy", false_names),
    Attack("markup", "titles with rich and HTML markup", markup),
    Attack("nul", "NUL and broken UTF-8 in queries and paths", nul),
    Attack("origins", "origins such as http://[", origins),
)
