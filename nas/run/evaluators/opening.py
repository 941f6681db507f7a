"""How an evaluator is named, and what such a name opens.

``package.module:Name``
    a Python object, see `nas.run.evaluators.python`.
``table:FILE``, ``table:FILE:COLUMN``, ``table:FILE:-COLUMN``
    a table whose column COLUMN (``quality`` if none is named) is the quality; with a minus more of
    it is better. The costs are the columns that are called like the objectives and limits.
``command:PROGRAM ARGUMENT …``
    a command line, split as a shell does, see `nas.run.evaluators.command`.
"""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nas.run.evaluators import Evaluator
from nas.run.evaluators.command import CommandEvaluator
from nas.run.evaluators.python import load_evaluator
from nas.run.evaluators.table import ENDINGS, TableEvaluator
from search_spaces.errors import UsageError
from search_spaces.genes import GeneSpace
from search_spaces.wording import mark

FORMS = "package.module:Name, table:FILE:COLUMN or 'command:PROGRAM ARGUMENT …'"
QUALITY_COLUMN = "quality"


@dataclass(frozen=True, slots=True)
class EvaluatorName:
    """The name of an evaluator, taken apart.

    Attributes:
        kind: what it names.
        place: module and attribute, file, or command line.
        column: of a table: the quality.
        maximise: of a table: whether more of it is better.
    """

    kind: Literal["python", "table", "command"]
    place: str
    column: str = QUALITY_COLUMN
    maximise: bool = False

    @classmethod
    def read(cls, text: str) -> EvaluatorName:
        """Take a name apart; nothing is opened.

        Raises:
            UsageError: for another form.
        """
        kind, colon, place = text.partition(":")
        if kind == "table" and place:
            return cls._table(place)
        if kind == "command" and place.strip():
            cls("command", place).words()
            return cls("command", place)
        if kind in ("table", "command") or not kind or not colon or not place:
            raise UsageError(f"{mark('evaluator')} takes {FORMS}; given {text!r}")
        return cls("python", text)

    @classmethod
    def _table(cls, place: str) -> EvaluatorName:
        file, colon, column = place.rpartition(":")
        if not colon or place.lower().endswith(ENDINGS):
            return cls("table", place)
        if not file or not column.removeprefix("-"):
            raise UsageError(f"{mark('evaluator')} takes {FORMS}; given {'table:' + place!r}")
        return cls("table", file, column.removeprefix("-"), column.startswith("-"))

    def words(self) -> list[str]:
        """Program and arguments of a command.

        Raises:
            UsageError: for quotes that are not closed.
        """
        try:
            return shlex.split(self.place)
        except ValueError as error:
            raise UsageError(f"{mark('evaluator')} command:{self.place}: {error}") from None

    def here(self) -> str:
        """The name as it holds in every folder: files with their whole path.

        Raises:
            UsageError: for a file or program that is not there.
        """
        if self.kind == "python":
            return self.place
        if self.kind == "table":
            path = Path(self.place).expanduser()
            if not path.is_file():
                raise UsageError(f"{mark('evaluator')} table:{self.place}: there is no such file")
            return f"table:{path.resolve()}:{'-' if self.maximise else ''}{self.column}"
        program, *arguments = self.words()
        found = shutil.which(program)
        if found is None:
            raise UsageError(
                f"{mark('evaluator')} command:{self.place}: there is no program {program!r}"
            )
        whole = str(Path(found).absolute()) if "/" in program else program
        return f"command:{shlex.join([whole, *arguments])}"

    def open(self, space: GeneSpace, costs: tuple[str, ...]) -> Evaluator:
        """The evaluator.

        Args:
            space: of the networks.
            costs: what is asked for beside quality; columns of a table.

        Raises:
            NasError: when it is not there, or is none.
        """
        if self.kind == "table":
            return TableEvaluator(space, self.place, self.column, costs, self.maximise)
        if self.kind == "command":
            return CommandEvaluator(self.words())
        return load_evaluator(self.place)
