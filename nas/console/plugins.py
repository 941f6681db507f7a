"""The group of all commands: our own, and those other packages add.

A package adds a command with an entry point of the group ``nas.commands``, whose name is the
command's name and whose object is a `typer.Typer` or a function. It is imported only when it is
called or listed, so that ``nas cost`` does not wait for a web service to load.
"""

from __future__ import annotations

import os
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from nas.console.failures import explained
from nas.console.output import tell

GROUP = "nas.commands"

# What the commands are for: the parts of `nas --help`.
WORK, USE, LOOK = "Search", "Use a trained network", "Look at runs"
SPACES, DATA = "Spaces and costs", "Data"


class CommandGroup(TyperGroup):
    """Our commands and the plug-ins'; every failure below it is explained."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Our own commands in their order, then the plug-ins' by name."""
        own = super().list_commands(ctx)
        return own + sorted(set(self._plugins) - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None for an unknown or broken one."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in self._plugins:
            return own
        if cmd_name not in self._loaded:
            self._loaded[cmd_name] = _load(self._plugins[cmd_name])
        return self._loaded[cmd_name]

    def invoke(self, ctx: Any) -> Any:
        """Run the command; failures become a sentence and an exit code."""
        with explained():
            return super().invoke(ctx)

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=GROUP)}

    @cached_property
    def _loaded(self) -> dict[str, Any]:
        return {}


def _load(point: EntryPoint) -> Any:
    try:
        target = point.load()
        app = target if isinstance(target, typer.Typer) else _single(point.name, target)
        command = typer.main.get_command(app)
    except Exception as error:
        # Whatever a plug-in does wrong, the other commands must go on working.
        if "_NAS_COMPLETE" not in os.environ:
            tell(
                f"warning: the command {point.name!r} of {point.value} cannot be loaded: "
                f"{type(error).__name__}: {error}",
                "yellow",
            )
        return None
    command.name = point.name
    return command


def _single(name: str, function: Any) -> typer.Typer:
    if not callable(function):
        raise TypeError(f"a command is a typer.Typer or a function, not {type(function).__name__}")
    app = typer.Typer(add_completion=False)
    app.command(name)(function)
    return app
