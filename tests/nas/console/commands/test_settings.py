"""`nas search --list-settings`: every number of a budget, of a space's presets too."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.request.presets import Budget, budget_for, setting_names, trained_here
from search_spaces.loading import load_space
from tests.support.external_cases import GENES


def nas(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_list_settings_needs_no_space() -> None:
    done = nas("search", "--list-settings")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in setting_names())
    assert nas("search").exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [("--space", "multi30k", "--list-settings"), ("--list-settings", "--space=multi30k")],
)
def test_list_settings_of_a_space(arguments: tuple[str, ...]) -> None:
    done = nas("search", *arguments)
    own = budget_for(load_space("multi30k"), "quick", {}).supernet
    (line,) = (line for line in done.stdout.splitlines() if " supernet.max_tokens " in line)
    assert line.split()[2] == str(own.max_tokens) != str(Budget().supernet.max_tokens)
    assert done.exit_code == 0 and "for the space multi30k" in done.stdout
    done = nas("search", "--space", "nowhere", "--list-settings")
    assert done.exit_code == 2 and "no space named 'nowhere'" in done.stderr


def test_of_genes_only_those_are_listed_that_an_evaluator_has_to_do_with(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GENES, "utf-8")
    done = nas("search", "--list-settings", "--space", str(tmp_path / "mine.toml"))
    listed = {name for name in setting_names() if f" {name} " in done.stdout}
    assert done.exit_code == 0
    assert listed == {name for name in setting_names() if not trained_here(name)}
