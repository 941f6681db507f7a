"""Attacks by what a body says: spaces and JSON that are short to write and long to read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import search_spaces
from experiments.siege.attack import Attack, Finding, refused, survived
from experiments.siege.ground import GLUTTON, MALLORY, PEEPER, Ground, Target
from experiments.siege.wire import CHUNK, pour

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

ATTACKS = (
    Attack("dotted-keys", "98 kB of dotted keys in a space, six at once", _all_refused(DOTTED)),
    Attack("inline-tables", "the same inside inline tables", _all_refused(INLINE)),
    Attack("separators", "the same behind quoted line ends of Unicode", _all_refused(SEPARATORS)),
    Attack("many-choices", "spaces with 15,000 choices and layers", many_choices),
    Attack("huge-space", "a space with more than 4,300 digits of networks", huge_space),
    Attack("nested-json", "900,000 brackets, and a number of 900,000 digits", nested_json),
    Attack("endless-body", "bodies far over the limit, with and without a length", endless_body),
    Attack("large-requests", "forty jobs of up to 0.9 MB of blanks and comments", large_requests),
)
