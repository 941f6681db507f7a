"""HTML by construction: whatever is not `Html` already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

FEW = 2  # columns that fit everywhere
VOID = frozenset({"meta", "br", "hr", "rect", "line"})


class Html(str):
    """Text that is markup; every other text is data."""

    __slots__ = ()

    def __html__(self) -> str:
        """For templates, which escape whatever has no such method."""
        return self


Child = str | Iterable[str]


def escape(text: object) -> Html:
    """Data as markup; markup stays as it is."""
    return text if isinstance(text, Html) else Html(html.escape(str(text)))


def join(*children: Child) -> Html:
    """Children one after the other, data escaped."""
    parts: list[str] = []
    for child in children:
        parts += [child] if isinstance(child, str) else child
    return Html("".join(map(escape, parts)))


def tag(name: str, /, *children: Child, **attributes: object) -> Html:
    """An element.

    Args:
        name: of the element.
        children: markup, data (which is escaped), or iterables of these.
        attributes: ``class_`` becomes ``class``, ``aria_label`` becomes ``aria-label``; None
            leaves the attribute out.
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID:
        return Html(f"<{name}{written}>" if name in ("meta", "br", "hr") else f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(*children)}</{name}>")


def paragraph(*children: Child) -> Html:
    """A paragraph of running text."""
    return tag("p", *children)


def missing(text: str) -> Html:
    """The sentence that stands where a run has nothing to show."""
    return tag("p", text, class_="missing")


def section(anchor: str, title: str, *children: Child) -> Html:
    """A section with a heading that can be linked to."""
    return tag("section", tag("h2", title), *children, id=anchor)


def cell(text: object, order: float | None = None, *, strong: bool = False) -> Html:
    """A table cell; `order` is the number it is sorted by (and sets it flush right)."""
    content = tag("strong", escape(text)) if strong else escape(text)
    number = order is not None
    return tag("td", content, class_="number" if number else None, data_order=order)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Html]],
    caption: str,
    *,
    sortable: bool = False,
) -> Html:
    """A table that scrolls sideways where it does not fit.

    On a narrow screen each row of one that has more than `FEW` columns is a card.

    Args:
        heads: of the columns.
        rows: cells made by `cell`.
        caption: one sentence above it.
        sortable: whether a click on a head sorts.
    """
    head = tag("tr", [tag("th", text, scope="col") for text in heads])
    cards = len(heads) > FEW
    body = [tag("tr", map(_labelled, row, heads) if cards else list(row)) for row in rows]
    inner = tag(
        "table",
        tag("thead", head),
        tag("tbody", body),
        class_=" ".join([*["cards"] * cards, *["sortable"] * sortable]) or None,
        aria_label=caption,
    )
    # No caption element: that would be as wide as a table that scrolls.
    return tag("div", tag("p", caption, class_="small"), tag("div", inner, class_="scroll"))


def _labelled(made: Html, head: str) -> Html:
    """A cell that knows the head of its column, for where the two stand beside each other."""
    return Html(made.replace("<td", f'<td data-label="{escape(head)}"', 1))
