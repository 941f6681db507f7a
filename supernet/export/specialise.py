"""Source text made special: branches on known properties decided, unused names and parts left out.

It works on the text, so that comments and layout stay. What is decided:

* ``if NAME:``, ``elif`` and ``a if NAME else b``, where the test is made of known names (``and``,
  ``or``, ``not``): the branch that counts takes its place. In ``NAME and rest`` a known name alone
  is enough.
* Parameters that have no use any more, by name, and arguments that are nothing but that name.
* Top-level functions, classes and constants that nothing reaches.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

Flags = Mapping[str, bool]
Span = tuple[int, int]

LINE_LENGTH = 100
# A signature whose parameters stand in a line of their own.
_SIGNATURE = re.compile(r"^( *def \w+\()\n +([^\n]*[^,\n])\n *(\) -> [^\n]*:)$", re.MULTILINE)


class Part(NamedTuple):
    """A top-level statement: the names it defines, and its text."""

    names: tuple[str, ...]
    text: str


def decided(text: str, flags: Flags) -> str:
    """The text with every branch on known names taken.

    Args:
        text: Python source.
        flags: name → whether it holds.
    """
    assert text.isascii(), "offsets count bytes"
    while (change := _first_branch(text, flags)) is not None:
        start, end, replacement = change
        text = text[:start] + replacement + text[end:]
    return text


def without_names(text: str, names: Collection[str]) -> str:
    """The text without parameters of these names, and without arguments that are such a name."""
    offsets, cuts = _offsets(text), list[tuple[int, int]]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            cuts += _cuts(text, _parameters(offsets, node), names)
        elif isinstance(node, ast.Call):
            cuts += _cuts(text, _arguments(offsets, node), names)
    for start, end in reversed(_merged(cuts)):
        text = text[:start] + text[end:]
    return text


def definitions(text: str) -> list[Part]:
    """Top-level functions, classes and constants, in order, with the comments above them."""
    lines = text.splitlines()
    return [
        Part(tuple(names), "\n".join(lines[_first_line(node, lines) : node.end_lineno]))
        for node in ast.parse(text).body
        if (names := _defined(node))
    ]


def reachable(parts: Sequence[Part], roots: Iterable[str]) -> list[Part]:
    """The parts that the roots need, in their order."""
    by_name = {name: part for part in parts for name in part.names}
    todo, seen = list(roots), set[Part]()
    while todo:
        part = by_name.get(todo.pop())
        if part is not None and part not in seen:
            seen.add(part)
            todo += used_names(part.text)
    return [part for part in parts if part in seen]


def used_names(text: str) -> list[str]:
    """All plain names in a piece of source, also those in annotations."""
    return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]


def tidied(text: str) -> str:
    """Laid out anew where something was left out: empty lines, and signatures that fit in one."""
    text = _SIGNATURE.sub(_joined, text)
    text = re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"(:\n)\n+(?=[ \t]+(?!def |@|class )\S)", r"\1", text)
    return re.sub(r"\n{3,}(?=[ \t])", "\n\n", text)


def _joined(found: re.Match[str]) -> str:
    line = "".join(found.groups())
    return line if len(line) <= LINE_LENGTH else found[0]


# -- branches -------------------------------------------------------------------------------------


def _first_branch(text: str, flags: Flags) -> tuple[int, int, str] | None:
    """What to replace next, as offsets, and by what."""
    offsets = _offsets(text)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.If | ast.IfExp):
            continue
        test = _simplified(node.test, flags)
        if isinstance(test, bool):
            if isinstance(node, ast.If):
                return _taken_branch(text, offsets, node, test)
            chosen = node.body if test else node.orelse
            return (*_span(offsets, node), _segment(text, offsets, chosen))
        if test is not node.test:
            return (*_span(offsets, node.test), _segment(text, offsets, test))
    return None


def _simplified(test: ast.expr, flags: Flags) -> bool | ast.expr:
    """True or False if that is known, else what is left to ask."""
    if isinstance(test, ast.Name):
        return flags.get(test.id, test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        value = _simplified(test.operand, flags)
        return not value if isinstance(value, bool) else test
    if not isinstance(test, ast.BoolOp):
        return test
    values = [_simplified(value, flags) for value in test.values]
    decisive = isinstance(test.op, ast.Or)
    if any(value is decisive for value in values):
        return decisive
    left = [value for value in values if not isinstance(value, bool)]
    if not left:
        return not decisive
    if len(left) == 1 and len(left) < len(values):
        return left[0]
    return test


def _taken_branch(text: str, offsets: list[int], node: ast.If, holds: bool) -> tuple[int, int, str]:
    """The whole statement, and the lines of the branch that counts, one level further out."""
    lines = text.splitlines(keepends=True)
    body_end = node.body[-1].end_lineno or 0
    whole = (offsets[node.lineno - 1], offsets[node.end_lineno or 0])
    head = lines[node.lineno - 1]
    if head.lstrip().startswith("elif"):
        return _taken_elif(lines, offsets, node, holds)
    if holds:
        test_end = node.test.end_lineno or 0
        return (*whole, _outdented(lines[test_end:body_end], head))
    otherwise = lines[body_end : node.end_lineno]
    for number, line in enumerate(otherwise):
        if line.strip() == "else:" and _indent(line) == _indent(head):
            return (*whole, _outdented(otherwise[number + 1 :], head))
        if line.lstrip().startswith("elif ") and _indent(line) == _indent(head):
            otherwise[number] = line.replace("elif ", "if ", 1)
            return (*whole, "".join(otherwise[number:]))
    return (*whole, "")


def _taken_elif(
    lines: list[str], offsets: list[int], node: ast.If, holds: bool
) -> tuple[int, int, str]:
    """An ``elif`` that holds is an ``else``; one that does not is not there."""
    indent = _indent(lines[node.lineno - 1])
    body_end = node.body[-1].end_lineno or 0
    start = offsets[node.lineno - 1]
    if holds:
        test_end = node.test.end_lineno or 0
        kept = "".join(lines[test_end:body_end])
        return start, offsets[node.end_lineno or 0], f"{' ' * indent}else:\n{kept}"
    return start, offsets[body_end], ""


def _outdented(lines: list[str], head: str) -> str:
    """Lines of a branch at the indentation of its statement."""
    return textwrap.indent(textwrap.dedent("".join(lines)), " " * _indent(head))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


# -- names ----------------------------------------------------------------------------------------


class _Item(NamedTuple):
    """A parameter or an argument, its default included; the name if it is nothing but one."""

    name: str
    span: Span


def _parameters(offsets: list[int], node: ast.FunctionDef) -> list[_Item]:
    assert not node.args.kwonlyargs and not node.args.posonlyargs, "parts have plain parameters"
    spans = [_span(offsets, argument) for argument in node.args.args]
    for back, default in enumerate(reversed(node.args.defaults), start=1):
        spans[-back] = (spans[-back][0], _span(offsets, default)[1])
    names = [argument.arg for argument in node.args.args]
    return [_Item(*pair) for pair in zip(names, spans, strict=True)]


def _arguments(offsets: list[int], node: ast.Call) -> list[_Item]:
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    names = [value.id if isinstance(value, ast.Name) else "" for value in values]
    spans = [_span(offsets, argument) for argument in (*node.args, *node.keywords)]
    return [_Item(*pair) for pair in zip(names, spans, strict=True)]


def _cuts(text: str, items: Sequence[_Item], names: Collection[str]) -> Iterator[Span]:
    """What to cut out for the items of these names to be gone, commas included."""
    for number, (name, (start, end)) in enumerate(items):
        if name not in names:
            continue
        if number + 1 < len(items):
            yield start, items[number + 1].span[0]
            continue
        kept = [item.span[1] for item in items[:number] if item.name not in names]
        trailing = end + len(text[end:]) - len(text[end:].lstrip())
        all_gone = not kept and text[trailing] == ","
        yield kept[-1] if kept else start, trailing + 1 if all_gone else end


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Sorted, and overlapping ones as one."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


# -- places ---------------------------------------------------------------------------------------


def _offsets(text: str) -> list[int]:
    """Offset of the begin of each line, and of the end."""
    found = [0]
    for line in text.splitlines(keepends=True):
        found.append(found[-1] + len(line))
    return found


def _span(offsets: list[int], node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, ast.expr | ast.arg | ast.keyword)
    return (
        offsets[node.lineno - 1] + node.col_offset,
        offsets[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0),
    )


def _segment(text: str, offsets: list[int], node: ast.expr) -> str:
    start, end = _span(offsets, node)
    return text[start:end]


def _first_line(node: ast.stmt, lines: list[str]) -> int:
    """Number of the first line of a statement, decorators and comments above it included."""
    decorators = getattr(node, "decorator_list", [])
    first: int = min([node.lineno, *(one.lineno for one in decorators)]) - 1
    while first > 0 and lines[first - 1].startswith("#"):
        first -= 1
    return first


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        targets = node.targets[0]
        names = targets.elts if isinstance(targets, ast.Tuple) else [targets]
        return [name.id for name in names if isinstance(name, ast.Name)]
    return []
