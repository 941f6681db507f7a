"""Imports go down only, none goes round in a circle, and heavy libraries stay in their modules."""

from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest

from nas.run.stages import Stage
from tests.layering_rules import (
    JOINTS,
    LATE,
    ROOT,
    Import,
    cycle,
    floor_violations,
    heavy_violations,
    imports,
    loaded,
    matches,
    module_arrows,
    modules,
    package_arrows,
    parsed,
    private_violations,
)


@pytest.fixture(scope="module")
def known() -> dict[str, Path]:
    return modules(ROOT)


@pytest.fixture(scope="module")
def found(known: dict[str, Path]) -> list[Import]:
    return imports(known)


def test_imports_go_down_only(found: list[Import]) -> None:
    assert floor_violations(found) == []


def test_no_import_cycle(found: list[Import], known: dict[str, Path]) -> None:
    assert cycle(module_arrows(found, known)) == []


def test_no_import_cycle_of_packages(found: list[Import], known: dict[str, Path]) -> None:
    assert cycle(package_arrows(found, known)) == []


def test_stages_sit_on_executors_and_both_on_the_run(
    found: list[Import], known: dict[str, Path]
) -> None:
    arrows = package_arrows(found, known)
    wanted = {(f"nas.{one}", "nas.run") for one in ("executors", "stages")}
    assert wanted | {("nas.stages", "nas.executors")} <= arrows


def test_the_service_and_the_console_know_nothing_of_the_commands(
    found: list[Import], known: dict[str, Path]
) -> None:
    arrows = module_arrows(found, known)
    sources = {source for source, target in arrows if matches(target, ("nas.console.commands.*",))}
    shared = {
        one for one in sources if matches(one, ("service.*", "nas.console.*", "nas.request.*"))
    }
    assert shared and {one for one in shared if "commands" not in one} == {"nas.console.app"}


def test_one_screen_lists_the_rooms_of_the_search() -> None:
    listed = {path.name for path in (ROOT / "nas").iterdir()} - {"__pycache__"}
    assert len(listed) <= 14, sorted(listed)


def test_heavy_libraries_stay_in_their_modules(found: list[Import]) -> None:
    assert heavy_violations(found) == []


def test_the_service_knows_no_command_of_the_search(found: list[Import]) -> None:
    assert private_violations(found) == []


def test_the_tree_is_read_at_all(found: list[Import], known: dict[str, Path]) -> None:
    pairs = {(item.source, item.target) for item in found}
    assert ("search_spaces.space", "search_spaces.architecture") in pairs
    assert {name.split(".")[0] for name in known} >= {"search_spaces", "supernet", "latency", "nas"}


SERVING = """
import pathlib, service.serving
from service.app import create_app
from service.settings import Settings
create_app(Settings(home=pathlib.Path("x")))
"""


@pytest.mark.parametrize(
    "arguments", [("-m", "nas.console.app", "--help"), ("-c", SERVING)], ids=["nas", "service"]
)
def test_starting_loads_no_heavy_library(arguments: tuple[str, ...]) -> None:
    names = loaded(*arguments)
    assert names >= {"search_spaces", "nas"} and not names & {"torch", "ray", "pandas", "plotly"}


def test_a_search_in_one_process_does_not_load_ray() -> None:
    opening = (
        "import nas.stages, nas.stages.retrain, nas.stages.pipeline\n"
        "from nas.executors.base import ExecutorSettings\n"
        "from nas.executors.opening import open_executor\n"
        "with open_executor(ExecutorSettings(), None) as executor: assert executor"
    )
    assert loaded("-c", opening) & {"torch", "ray"} == {"torch"}


def test_only_the_joints_load_torch(known: dict[str, Path]) -> None:
    free = [name for name in known if name.split(".")[0] in ("search_spaces", "nas")]
    free = [name for name in free if name in LATE or not matches(name, JOINTS)]
    free += ["service.dashboard.run_views"]  # the pages of runs
    assert "torch" not in loaded("-c", "import " + ", ".join(free))


def test_the_page_on_architecture_names_what_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    (attribute,) = re.findall(r"the table of stages \(`(\w+)`\)", page)
    assert attribute in {field.name for field in fields(Stage)}
    joining, joints, _ = page.partition("In `nas`, only what ")[2].partition("`JOINTS`")
    rooms = [f"nas.{room.replace('/', '.')}" for room in re.findall(r"`([a-z_/]+)`", joining)]
    assert joints and rooms and all(any(j.startswith(room) for j in JOINTS) for room in rooms)


def test_loaded_sees_what_is_imported() -> None:
    assert "wave" in loaded("-c", "import wave")
    assert "wave" not in loaded("-c", "pass")


def test_what_runs_a_module_stands_at_its_end(known: dict[str, Path]) -> None:
    """What is defined below it is not there yet when the module is run."""
    early = []
    for path in known.values():
        body = parsed(path).body
        tests = [node for node in body if isinstance(node, ast.If)]
        guards = [node for node in tests if ast.unparse(node.test).startswith("__name__ == ")]
        early += [str(path.relative_to(ROOT)) for node in guards if node is not body[-1]]
    assert early == []
