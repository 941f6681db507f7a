"""What is wrong with the data of a user, gathered into one list instead of told one a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from search_spaces.errors import DataError
from search_spaces.wording import mark

MOST_SHOWN = 200  # findings of a list; of the others their number is told


@dataclass(slots=True)
class Doctor:
    """Findings about the files of one preparation, in the order in which they were read.

    Attributes:
        skip_bad: whether examples that cannot be used are left out.
        bad: what is wrong with examples, each with file and line.
        wrong: what leaving out examples does not mend, such as a file that is missing.
        ignored: what is there and is not read.
        skipped: examples that cannot be used, by the split they were given for.
    """

    skip_bad: bool = False
    bad: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def leave_out(self, split: str, place: str, reason: str) -> None:
        """Note an example that cannot be used."""
        self.bad.append(f"{place}: {reason}")
        self.skipped[split] += 1

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Note an error of a whole file and go on with the next one."""
        try:
            yield
        except DataError as error:
            self.wrong.append(error.marked)

    def check(self) -> None:
        """See that the data can be used.

        Raises:
            DataError: with everything that is wrong, a line for each.
        """
        found = [*self.wrong, *([] if self.skip_bad else self.bad)]
        if not found:
            return
        advice = "mend it" if len(found) == 1 else "Mend them"
        if not self.wrong:
            them = "it" if len(found) == 1 else "them"
            advice += f", or leave {them} out with {mark('skip_bad')}"
        elif self.bad and not self.skip_bad:
            advice += f"; single examples can be left out with {mark('skip_bad')}"
        if len(found) == 1:
            raise DataError(f"{found[0]}; {advice}" if self.bad and not self.wrong else found[0])
        shown = found[:MOST_SHOWN]
        if len(found) > len(shown):
            shown.append(f"and {len(found) - len(shown):,} more")
        lines = "".join(f"\n  {line}" for line in shown)
        raise DataError(f"{len(found):,} things are wrong with the data:{lines}\n{advice}")
