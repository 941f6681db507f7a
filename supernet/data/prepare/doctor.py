"""What is wrong with the data of a user, gathered into one list instead of told one a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from search_spaces.errors import DataError
from search_spaces.wording import mark
from supernet.data.text_files import WrongEncoding

MOST_SHOWN = 200  # findings of a list; of the others their number is told


@dataclass(slots=True)
class _Lines:
    """Lines of a file that are not UTF-8: their finding's place, the first of them, how many."""

    place: int
    first: int
    wrong: WrongEncoding
    count: int = 0


@dataclass(slots=True)
class Doctor:
    """Findings about the files of one preparation, in the order in which they were read.

    Attributes:
        skip_bad: whether examples that cannot be used are left out.
        bad: what is wrong with examples, each with file and line; of lines that are not UTF-8 one
            finding for all of a file.
        wrong: what leaving out examples does not mend, such as a file that is missing.
        ignored: what is there and is not read.
        skipped: examples that cannot be used, by the split they were given for.
        guessed: what was taken for source and target though no name says so.
    """

    skip_bad: bool = False
    bad: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    guessed: str = ""
    _encodings: dict[tuple[Path, type[WrongEncoding]], _Lines] = field(default_factory=dict)

    def leave_out(self, split: str, place: str, reason: str) -> None:
        """Note an example that cannot be used."""
        self.bad.append(f"{place}: {reason}")
        self.skipped[split] += 1

    def leave_out_line(self, split: str, path: Path, line: int, wrong: WrongEncoding) -> None:
        """Note an example that cannot be used since its line is not UTF-8."""
        key = path, type(wrong)
        if key not in self._encodings:
            self._encodings[key] = _Lines(len(self.bad), line, wrong)
            self.bad.append("")
        found = self._encodings[key]
        found.count += 1
        self.bad[found.place] = found.wrong.of_file(path, found.first, found.count)
        self.skipped[split] += 1

    @property
    def garbled(self) -> bool:
        """Whether files are not UTF-8 in several lines: what they hold in all is not known then."""
        return any(one.count > 1 for one in self._encodings.values())

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Note an error of a whole file and go on with the next one."""
        try:
            yield
        except DataError as error:
            self.wrong.append(error.marked)

    def check_left(self, counts: Mapping[str, int]) -> None:
        """See that not all examples of a split were left out.

        Args:
            counts: split that files were given for → its examples that can be used.

        Raises:
            DataError: naming the first split of which nothing is left.
        """
        empty = next((split for split, count in counts.items() if not count), None)
        if empty is not None:
            raise DataError(
                f"nothing is left of the {empty} split: none of its {self.skipped[empty]:,} "
                f"examples can be used, and without {mark('skip_bad')} it is told why"
            )

    def check(self) -> None:
        """See that the data can be used.

        Raises:
            DataError: with everything that is wrong, a line for each.
        """
        found = [*self.wrong, *([] if self.skip_bad else self.bad)]
        if not found:
            return
        them = "it" if self.skipped.total() == 1 else "them"
        leave = f"or leave {them} out with {mark('skip_bad')}"
        if len(found) == 1:
            mend = "" if self._encodings else "mend it, "  # converting is told there
            raise DataError(found[0] if self.wrong else f"{found[0]}; {mend}{leave}")
        advice = "Mend them"
        if not self.wrong:
            advice += f", {leave}"
        elif self.bad and not self.skip_bad:
            advice += f"; single examples can be left out with {mark('skip_bad')}"
        shown = found[:MOST_SHOWN]
        if len(found) > len(shown):
            shown.append(f"and {len(found) - len(shown):,} more")
        lines = "".join(f"\n  {line}" for line in shown)
        raise DataError(f"{len(found):,} things are wrong with the data:{lines}\n{advice}")
