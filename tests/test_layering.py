"""Imports go down only, none goes round in a circle, and heavy libraries stay in their modules."""

from __future__ import annotations

import ast

import pytest

from tests.layering_rules import (
    FLOORS,
    JOINTS,
    LATE,
    ROOT,
    cycle,
    floor_violations,
    heavy_violations,
    imports,
    loaded,
    matches,
    module_arrows,
    modules,
    package_arrows,
    private_violations,
)


def test_imports_go_down_only() -> None:
    assert floor_violations(imports(modules(ROOT))) == []


def test_no_import_cycle() -> None:
    known = modules(ROOT)
    assert cycle(module_arrows(imports(known), known)) == []


def test_no_import_cycle_of_packages() -> None:
    known = modules(ROOT)
    assert cycle(package_arrows(imports(known), known)) == []


def test_stages_sit_on_executors_and_both_on_the_run() -> None:
    known = modules(ROOT)
    arrows = package_arrows(imports(known), known)
    wanted = {(f"nas.{one}", "nas.run") for one in ("executors", "stages")}
    assert wanted | {("nas.stages", "nas.executors")} <= arrows


def test_the_service_and_the_console_know_nothing_of_the_commands() -> None:
    known = modules(ROOT)
    arrows = module_arrows(imports(known), known)
    outside = ("service.", "nas.console", "nas.request")
    to_commands = [one for one in arrows if one[1].startswith("nas.cli")]
    assert to_commands and [one for one in to_commands if one[0].startswith(outside)] == []


def test_heavy_libraries_stay_in_their_modules() -> None:
    assert heavy_violations(imports(modules(ROOT))) == []


def test_the_service_knows_no_command_of_the_search() -> None:
    assert private_violations(imports(modules(ROOT))) == []


def test_the_tree_is_read_at_all() -> None:
    known = modules(ROOT)
    found = {(item.source, item.target) for item in imports(known)}
    assert ("search_spaces.space", "search_spaces.architecture") in found
    assert {name.split(".")[0] for name in known} >= {"search_spaces", "supernet", "latency", "nas"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("-c", "import search_spaces"),
        ("-c", "import nas"),
        ("-m", "nas.cli.app", "--help"),
        ("-c", "import service.app"),
    ],
    ids=" ".join,
)
def test_starting_loads_neither_torch_nor_ray_nor_pandas(arguments: tuple[str, ...]) -> None:
    assert loaded(*arguments) & {"torch", "ray", "pandas"} == set()


def test_a_search_in_one_process_does_not_load_ray() -> None:
    opening = (
        "import nas.stages, nas.stages.retrain, nas.stages.pipeline\n"
        "from nas.executors.base import ExecutorSettings\n"
        "from nas.executors.opening import open_executor\n"
        "with open_executor(ExecutorSettings(), None) as executor: assert executor"
    )
    assert loaded("-c", opening) & {"torch", "ray"} == {"torch"}


def test_only_the_joints_load_torch() -> None:
    free = [name for name in modules(ROOT) if name.split(".")[0] in ("search_spaces", "nas")]
    free = [name for name in free if name in LATE or not matches(name, JOINTS)]
    assert "torch" not in loaded("-c", "import " + ", ".join(free))


def test_loaded_sees_what_is_imported() -> None:
    assert "wave" in loaded("-c", "import wave")
    assert "wave" not in loaded("-c", "pass")


def test_what_runs_a_module_stands_at_its_end() -> None:
    """What is defined below it is not there yet when the module is run."""
    early = []
    for package in FLOORS:
        for path in (ROOT / package).rglob("*.py"):
            body = ast.parse(path.read_text(encoding="utf-8")).body
            guards = [node for node in body if ast.unparse(node).startswith("if __name__ == ")]
            early += [str(path.relative_to(ROOT)) for node in guards if node is not body[-1]]
    assert early == []
