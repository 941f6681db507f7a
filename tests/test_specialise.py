"""Source text with branches decided, useless parameters gone and unused parts left out."""

from __future__ import annotations

import ast
import itertools
import textwrap

import pytest

from supernet.export.specialise import decided, definitions, reachable, tidied, without_names

BRANCHES = """
def f(x):
    found = []
    if A:
        # why
        found.append("a")
    elif B and x > 1:
        found.append("b")
    elif x > 2:
        found.append("x")
    else:
        found.append("none")
    if x > 3:
        found.append("big")
    elif B:
        found.append("not big")
    if not A or C:
        if B or x > 1:
            found.append("inner")
    found.append(1 if A and C else 2)
    return found
"""


def run(text: str, x: int, **flags: bool) -> list[object]:
    names: dict[str, object] = dict(flags)
    exec(text, names)
    return names["f"](x)  # type: ignore[operator, no-any-return]


@pytest.mark.parametrize("flags", list(itertools.product([True, False], repeat=3)))
def test_decided_text_does_what_the_branches_do(flags: tuple[bool, ...]) -> None:
    known = dict(zip("ABC", flags, strict=True))
    text = decided(BRANCHES, known)
    for x in range(5):
        assert run(text, x) == run(BRANCHES, x, **known)
    assert not {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)} & known.keys()


def test_what_is_not_known_stays() -> None:
    assert decided(BRANCHES, {}) == BRANCHES


def test_comments_stay_with_their_branch() -> None:
    assert "    # why\n    found" in decided(BRANCHES, {"A": True})
    assert "# why" not in decided(BRANCHES, {"A": False})


def test_methods_can_be_left_out() -> None:
    text = "class C:\n    x = 1\n    if A:\n\n        def f(self):\n            return 2\n"
    assert "    def f(self):\n        return 2\n" in decided(text, {"A": True})
    assert "def" not in decided(text, {"A": False})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("f(a, x)", "f(a)"),
        ("f(x, a)", "f(a)"),
        ("f(x)", "f()"),
        ("f(x, x)", "f()"),
        ("f(a, x, b, x)", "f(a, b)"),
        ("f(a, k=x)", "f(a)"),
        ("f(a, g(x), x + 1, x[0])", "f(a, g(), x + 1, x[0])"),
        ("f(\n    a,\n    x,\n)", "f(\n    a,\n)"),
        ("f(\n    x,\n)", "f(\n    \n)"),
    ],
)
def test_arguments_go(given: str, expected: str) -> None:
    assert without_names(given, {"x"}) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("self, a: int, x: int = 1", "self, a: int"),
        ("self, x: int, a: int = 2", "self, a: int = 2"),
        ("self, a: int = 2, x: int = (1 + 2), b: int = 3", "self, a: int = 2, b: int = 3"),
        ("self, a, y", "self, a, y"),
    ],
)
def test_parameters_go(given: str, expected: str) -> None:
    body = " -> None:\n    return\n"
    assert without_names(f"def f({given}){body}", {"x"}) == f"def f({expected}){body}"


def test_only_what_is_reached_stays() -> None:
    text = textwrap.dedent("""
        A, B = 1, 2

        # about g
        def g(): return A

        class Unused(Base): pass

        def f(x: C): return g()

        class C: pass
        """)
    names = [name for part in reachable(definitions(text), ["f"]) for name in part.names]
    assert names == ["A", "B", "g", "f", "C"]
    assert definitions(text)[1].text.startswith("# about g\ndef g")


def test_signatures_are_joined_where_they_fit() -> None:
    short = "def f(\n    a: int, b: int\n) -> int:\n    return a\n"
    long = f"def f(\n    {'a' * 90}: int\n) -> int:\n    return 1\n"
    assert tidied(short) == "def f(a: int, b: int) -> int:\n    return a\n"
    assert tidied(long) == long
