"""What ``--set`` can override: `nas search --list-settings`."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from typer.core import TyperCommand

from nas.console.commands.checked_spaces import checked_any
from nas.console.formatting import NOTHING
from nas.console.output import out
from nas.console.tables import table
from nas.request.presets import PRESETS, budget_for, build_budget, flat, trained_here
from search_spaces.genes import GeneSpace
from search_spaces.space import SearchSpace

_SPACE = "nas.console.commands.settings.space"


class KnowsSpace(TyperCommand):
    """A command whose ``--list-settings``, which needs no other option, knows ``--space``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Look at ``--space`` before the callbacks of options are called."""
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_SPACE] = given.get("space")
        return super().parse_args(ctx, args)


def list_settings(ctx: typer.Context, wanted: bool) -> None:
    """Print the settings of the space given, or the presets' own, and end."""
    if wanted:
        name = ctx.meta.get(_SPACE)
        out().print(settings_table(None if name is None else checked_any(name)))
        raise typer.Exit


def settings_table(space: SearchSpace | GeneSpace | None = None) -> Table:
    """Every number of a budget with its value in each preset, of a space if one is given.

    Of a space of genes those that an evaluator's networks have to do with.
    """
    foreign = isinstance(space, GeneSpace)
    if space is None:
        of = "--space shows a space's own"
        budgets = {name: build_budget(values) for name, values in PRESETS.items()}
    else:
        of = f"values for the space {space.name}"
        own = None if isinstance(space, GeneSpace) else space
        budgets = {name: budget_for(own, name, {}) for name in PRESETS}
    presets = {name: dict(flat(budget)) for name, budget in budgets.items()}
    title = f"Settings for --set NAME=VALUE ({of})"
    made = table(title, ["setting", *presets], presets, whole=["setting"], spare=["paper"])
    for name in presets["quick"]:
        if foreign and trained_here(name):
            continue
        made.add_row(name, *(_value(values[name]) for values in presets.values()))
    return made


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return {None: NOTHING, "": "''"}.get(value, str(value))
