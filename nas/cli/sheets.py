"""Tables in which no id, number or name is ever cut, however narrow the terminal is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text, TextType

# Columns are left out where a text would be folded to fewer characters than this.
READABLE = 24
# As wide as no table gets.
_ENDLESS = 100_000


class Folding:
    """Text that is folded at spaces, and after strokes and plus signs: ``softmax/`` ``linear``."""

    def __init__(self, text: str) -> None:
        """Keep the text."""
        self.text = text
        self.parts = re.findall(r"[^/+ ]+[/+ ]?|[/+ ]", text)

    def __str__(self) -> str:
        """The text in one line."""
        return self.text

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """From the longest part to all of it."""
        longest = max((len(part.rstrip()) for part in self.parts), default=0)
        return Measurement(longest, len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """As many parts in each line as there is room for."""
        lines = [""]
        for part in self.parts:
            if lines[-1] and len((lines[-1] + part).rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines))


class Sheet(Table):
    """A table that keeps words whole.

    Where it is too wide, headings fold at spaces, then texts; then the columns that can be spared
    are left out, and named below it. What is still too wide is printed as it is: a terminal that
    wraps lines loses nothing, a cut number is lost.
    """

    def __init__(self, title: str, spare: Sequence[str] = ()) -> None:
        """An empty table.

        Args:
            title: above it; empty for none.
            spare: headings of the columns that can be left out, those to go first first.
        """
        super().__init__(title=title or None)
        self.spare = tuple(spare)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """The width of what is printed."""
        return Measurement.get(console, options.update(width=_ENDLESS), self._fitted(console))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table as it fits."""
        fitted = self._fitted(console, options.max_width)
        needed = Measurement.get(console, options.update(width=_ENDLESS), fitted).maximum
        yield from console.render(fitted, options.update(width=max(options.max_width, needed)))

    def _fitted(self, console: Console, width: int = _ENDLESS) -> Table:
        """A plain table with the columns there is room for, each of a fixed width."""
        columns = [_sized(console, column) for column in self.columns]
        left_out: list[str] = []
        for name in self.spare:
            if sum(one.readable for one in columns) <= width - _frame(console, len(columns)):
                break
            left_out += [name for one in columns if one.column.header == name]
            columns = [one for one in columns if one.column.header != name]
        made = _plain(self.title, left_out)
        widths = _shared_out(columns, width - _frame(console, len(columns)))
        for one, own in zip(columns, widths, strict=True):
            made.add_column(
                one.column.header, justify=one.column.justify, overflow="fold", width=own
            )
        lines = zip(*(one.column.cells for one in columns), strict=True)
        for row, cells in zip(self.rows, lines, strict=True):
            made.add_row(*cells, style=row.style, end_section=row.end_section)
        return made


@dataclass(frozen=True)
class _Sized:
    """A column, the fewest characters it needs and the most it fills."""

    column: Column
    least: int
    most: int

    @property
    def readable(self) -> int:
        """How narrow it may be without leaving columns out for it."""
        return self.least if self.column.no_wrap else min(self.most, max(self.least, READABLE))


def _sized(console: Console, column: Column) -> _Sized:
    options = console.options.update(width=_ENDLESS)
    heading = Measurement.get(console, options, column.header)
    cells = [Measurement.get(console, options, cell) for cell in column.cells]
    whole = [cell.maximum if column.no_wrap else cell.minimum for cell in cells]
    least = max([1, heading.minimum, *whole])
    return _Sized(column, least, max([least, heading.maximum, *(cell.maximum for cell in cells)]))


def _shared_out(columns: Sequence[_Sized], room: int) -> list[int]:
    """The widths: headings give way first, then texts, the widest first."""
    widths = [one.most for one in columns]
    for numbers in (True, False):
        while sum(widths) > room:
            narrower = [
                at
                for at, one in enumerate(columns)
                if widths[at] > one.least and bool(one.column.no_wrap) >= numbers
            ]
            if not narrower:
                break
            widths[max(narrower, key=widths.__getitem__)] -= 1
    return widths


def _frame(console: Console, count: int) -> int:
    """The characters between and around so many columns."""
    empty = _plain(None, ())
    for _ in range(count):
        empty.add_column("", width=1)
    return Measurement.get(console, console.options.update(width=_ENDLESS), empty).maximum - count


def _plain(title: TextType | None, left_out: Sequence[str]) -> Table:
    names = ", ".join(" ".join(name.split()) for name in left_out)
    return Table(
        title=title,
        caption=f"a wider terminal also shows: {names}" if names else None,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
