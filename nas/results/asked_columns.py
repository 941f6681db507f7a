"""Which column of a table holds what a network is asked: as preparation finds it, without answers.

Labels and translations may stand beside it, and need not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from search_spaces.tasks import TaskName
from supernet.data.prepare.records import USUAL_NAMES, Columns

# What of the data a network of texts is given, by its task.
READS: dict[TaskName, str] = {
    "classification": "text",
    "language_modelling": "text",
    "translation": "source",
}
PAIRS = (("source", "target"),)


@dataclass(frozen=True)
class AskedColumns(Columns):
    """The column of one role.

    Attributes:
        labelled: whether preparation wants a label beside it, and so takes no column by itself
            whatever it is called.
        prepared: the column that the data of the network were read from where that was told; it is
            read wherever it is there, unless another one is given.
    """

    labelled: bool = False
    prepared: str = ""

    def find(self, names: Sequence[str]) -> tuple[str, ...] | None:
        """The column that some names have; of two sides without usual names the source."""
        (role,) = self.forms[0]
        if self.prepared and self.prepared in names and not self.given:
            return (self.prepared,)
        found = Columns.find(self, names)
        if found is None and role == "source":
            pairs = Columns(PAIRS, self.given, pair=self.pair)
            found = pairs.find(names)
        if found is not None and self.labelled and not self.given:
            return found[:1] if found[0] in USUAL_NAMES[role] else None
        return None if found is None else found[:1]


def asked_columns(
    task: TaskName, pictures: bool, given: Mapping[str, str], prepared: Mapping[str, str]
) -> AskedColumns:
    """What to look for in data that a network is asked about.

    Args:
        task: of the network.
        pictures: whether it reads these.
        given: role → column, where it is told.
        prepared: the same of the data that the network learnt from.
    """
    role = "image" if pictures else READS[task]
    labelled = task == "classification"
    return AskedColumns(((role,),), given, labelled=labelled, prepared=prepared.get(role, ""))
