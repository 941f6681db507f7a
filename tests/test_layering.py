"""Imports go down only, none goes round in a circle, and heavy libraries stay in their modules.

The checks read the source with `ast`. An import inside a function or for the type checker counts
like any other, for it tells as well who knows whom. The last tests of the tree run an interpreter
and look at what it loaded.
"""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

FLOORS = {
    "search_spaces": 0,
    "supernet": 1,
    "latency": 1,
    "nas": 2,
    "service": 3,
    "experiments": 3,
}

# Where the search meets the trained networks; everything else in nas is numpy and values.
JOINTS = (
    "nas.stages*",
    "nas.run.stage_runner",
    "nas.run.opened",
    "nas.run.supernet_training",
    "nas.retrain*",
    "nas.run.evaluator*",
    "nas.profiling.timed_work",
    "nas.profiling.onnx_timing",
    "nas.profiling.profile_device",
    "nas.profiling.latency_meter",
    "nas.omni_measuring",
    "nas.executors.ray*",
    "nas.retraining.tuning",
)

# Library → the modules that may import it, at the top or inside a function.
HEAVY: dict[str, tuple[str, ...]] = {
    "torch": ("supernet", "supernet.*", "latency.*", "experiments.*", *JOINTS),
    "ray": ("nas.executors.ray*", "nas.retraining.tuning", "experiments.ray_chaos"),
    "fairseq": ("supernet.export.fairseq_plugin.nas_fairseq*",),
    "onnx": ("supernet.export.onnx_tracing",),
    "onnxscript": ("supernet.export.onnx_tracing",),
    "onnxruntime": ("supernet.export.onnx", "supernet.export.onnx_driver"),
    "optuna": ("nas.searchers.optuna_study",),
    "sqlalchemy": ("service.store", "service.store.*"),
    "alembic": ("service.store", "service.store.*"),
    "plotly": ("nas.report*",),
    "sacrebleu": ("supernet.tasks.bleu",),
    "moocore": ("nas.pareto",),
    "tensorboard": ("nas.listeners.tensorboard",),
    "mlflow": ("nas.listeners.mlflow",),
    "safetensors": ("supernet.export.*",),
    "transformers": ("supernet.export.*",),
}


@dataclass(frozen=True)
class Import:
    """One import statement: who, whom, and on which line."""

    source: str
    target: str
    line: int


def modules(root: Path) -> dict[str, Path]:
    """Dotted name → file of every module of our packages under `root`."""
    found = {}
    for package in FLOORS:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: dict[str, Path]) -> list[Import]:
    """Every import in the given modules, wherever it stands."""
    found = []
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                for target in _targets(node, package, known):
                    found.append(Import(name, target, node.lineno))
    return found


def _targets(node: ast.Import | ast.ImportFrom, package: str, known: Iterable[str]) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        parent = parts[: len(parts) - node.level + 1]
        base = ".".join([*parent, *([base] if base else [])])
    members = [f"{base}.{alias.name}" for alias in node.names]
    return list(dict.fromkeys(member if member in known else base for member in members))


def floor_violations(found: Iterable[Import]) -> list[str]:
    """Imports that go up, sideways or into the tests."""
    wrong = []
    for item in found:
        source, target = item.source.split(".")[0], item.target.split(".")[0]
        outside = target == "tests"
        if target in FLOORS and target != source:
            outside = FLOORS[target] >= FLOORS[source]
        if outside:
            wrong.append(f"{item.source}:{item.line} imports {item.target}")
    return wrong


def heavy_violations(found: Iterable[Import]) -> list[str]:
    """Imports of a heavy library outside the modules named for it."""
    wrong = []
    for item in found:
        allowed = HEAVY.get(item.target.split(".")[0])
        if allowed is not None and not _matches(item.source, allowed):
            wrong.append(f"{item.source}:{item.line} imports {item.target}")
    return wrong


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def module_arrows(found: Iterable[Import], known: Collection[str]) -> set[tuple[str, str]]:
    """Which of our modules imports which."""
    pairs = {(item.source, item.target) for item in found if item.target in known}
    return {(source, target) for source, target in pairs if source != target}


def package_arrows(found: Iterable[Import], known: Collection[str]) -> set[tuple[str, str]]:
    """The same of packages within a floor; a module beside them counts as one."""
    pairs = {(_package(source), _package(target)) for source, target in module_arrows(found, known)}
    return {(source, target) for source, target in pairs if source != target}


def _package(name: str) -> str:
    return ".".join(name.split(".")[:2])


def cycle(arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The names of one circle, or nothing."""
    graph: dict[str, set[str]] = {}
    for source, target in arrows:
        graph.setdefault(source, set()).add(target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def loaded(*arguments: str) -> set[str]:
    """Names of all modules that `python ARGUMENTS` loads."""
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stderr.splitlines()
    timed = [line for line in lines if line.startswith("import time:")]
    assert done.returncode == 0, "\n".join(line for line in lines if line not in timed)
    return {line.rpartition("|")[2].strip() for line in timed}


def _tree(root: Path, files: dict[str, str]) -> tuple[list[Import], dict[str, Path]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    known = modules(root)
    return imports(known), known


# -- the tree as it is ------------------------------------------------------------------------


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


def test_heavy_libraries_stay_in_their_modules() -> None:
    assert heavy_violations(imports(modules(ROOT))) == []


def test_the_tree_is_read_at_all() -> None:
    known = modules(ROOT)
    found = {(item.source, item.target) for item in imports(known)}
    assert ("search_spaces.space", "search_spaces.architecture") in found
    assert {name.split(".")[0] for name in known} >= {"search_spaces", "supernet", "latency", "nas"}


@pytest.mark.parametrize(
    "arguments",
    [("-c", "import search_spaces"), ("-c", "import nas"), ("-m", "nas.cli.app", "--help")],
    ids=" ".join,
)
def test_starting_loads_neither_torch_nor_ray(arguments: tuple[str, ...]) -> None:
    assert loaded(*arguments) & {"torch", "ray"} == set()


def test_a_search_in_one_process_does_not_load_ray() -> None:
    opening = (
        "import nas.stages, nas.retrain, nas.pipeline\n"
        "from nas.executors.base import ExecutorSettings\n"
        "from nas.executors.opening import open_executor\n"
        "with open_executor(ExecutorSettings(), None) as executor: assert executor"
    )
    assert loaded("-c", opening) & {"torch", "ray"} == {"torch"}


def test_only_the_joints_load_torch() -> None:
    free = [name for name in modules(ROOT) if name.split(".")[0] in ("search_spaces", "nas")]
    free = [name for name in free if not _matches(name, JOINTS)]
    assert "torch" not in loaded("-c", "import " + ", ".join(free))


def test_loaded_sees_what_is_imported() -> None:
    assert "wave" in loaded("-c", "import wave")
    assert "wave" not in loaded("-c", "pass")


# -- the checker itself -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("search_spaces/a.py", "import nas.pareto"),
        ("search_spaces/a.py", "from supernet import layers"),
        ("nas/a.py", "from experiments.study import run"),
        ("nas/a.py", "def late():\n    import service.app"),
        ("nas/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import service"),
        ("supernet/deep/a.py", "from latency.timer import time_calls"),
        ("latency/a.py", "import supernet"),
        ("service/a.py", "import experiments"),
        ("experiments/a.py", "from service import app"),
        ("nas/a.py", "from tests.naive_attention import softmax"),
    ],
)
def test_an_upward_or_sideways_import_is_found(tmp_path: Path, file: str, text: str) -> None:
    found, _ = _tree(tmp_path, {file: text})
    assert len(floor_violations(found)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("nas/a.py", "import supernet.layers, latency.timer, search_spaces"),
        ("nas/a.py", "from . import b\nfrom .b import c\nimport nas.b"),
        ("experiments/a.py", "import nas, supernet"),
        ("nas/a.py", "import nasty, testsuite, numpy"),
    ],
)
def test_a_downward_import_is_fine(tmp_path: Path, file: str, text: str) -> None:
    found, _ = _tree(tmp_path, {file: text})
    assert floor_violations(found) == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("search_spaces/a.py", "import torch"),
        ("nas/pareto.py", "def late():\n    from torch import nn"),
        ("nas/cli/app.py", "import torch.nn as nn"),
        ("nas/pipeline.py", "import ray"),
        ("nas/executors/local.py", "import ray.util"),
        ("supernet/models.py", "from fairseq.models import FairseqModel"),
        ("nas/evolution.py", "import optuna"),
        ("service/app.py", "from sqlalchemy import select"),
        ("experiments/a.py", "import plotly.graph_objects"),
        ("nas/cli/progress.py", "import tensorboard.summary"),
        ("nas/front.py", "import moocore"),
    ],
)
def test_a_heavy_library_elsewhere_is_found(tmp_path: Path, file: str, text: str) -> None:
    found, _ = _tree(tmp_path, {file: text})
    assert len(heavy_violations(found)) == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("supernet/deep/a.py", "import torch"),
        ("latency/timer.py", "import torch"),
        ("nas/stages/train.py", "import torch"),
        ("nas/retrain.py", "import torch"),
        ("nas/executors/ray.py", "import ray"),
        ("nas/report_figures.py", "import plotly.graph_objects"),
        ("service/store/sql.py", "import sqlalchemy"),
        ("nas/listeners/mlflow.py", "def late():\n    from mlflow.tracking import MlflowClient"),
        ("nas/a.py", "import rayleigh, torchless"),
    ],
)
def test_a_heavy_library_in_its_module_is_fine(tmp_path: Path, file: str, text: str) -> None:
    found, _ = _tree(tmp_path, {file: text})
    assert heavy_violations(found) == []


@pytest.mark.parametrize(
    "back",
    [
        "import nas.a",
        "from nas import a",
        "from . import a",
        "try:\n    from .a import x\nfinally: x",
        "if TYPE_CHECKING:\n    x = 1\nelse:\n    import nas.a",
        "def late():\n    import nas.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nas.a",
    ],
)
def test_a_cycle_is_found(tmp_path: Path, back: str) -> None:
    tree = _tree(tmp_path, {"nas/a.py": "from nas.b import y", "nas/b.py": back})
    assert set(cycle(module_arrows(*tree))) == {"nas.a", "nas.b"}


def test_a_cycle_over_three_packages_is_found(tmp_path: Path) -> None:
    files = {
        "nas/__init__.py": "from nas.cli.app import main",
        "nas/cli/app.py": "from ..stages import run",
        "nas/stages.py": "import nas",
    }
    assert len(set(cycle(module_arrows(*_tree(tmp_path, files))))) == 3


@pytest.mark.parametrize("back", ["import nas", "import nas.c", "import nas.b"])
def test_an_import_of_others_is_no_cycle(tmp_path: Path, back: str) -> None:
    files = {"nas/a.py": "from nas.b import y", "nas/b.py": back, "nas/c.py": ""}
    assert cycle(module_arrows(*_tree(tmp_path, files))) == []


PACKAGES = {
    "nas/stages/base.py": "from nas.executors.local import LocalExecutor",
    "nas/stages/learn.py": "",
    "nas/executors/local.py": "",
    "nas/run/evaluator.py": "",
}


@pytest.mark.parametrize(
    "back",
    [
        {"nas/executors/ray.py": "def train():\n    from nas.stages.learn import trainer"},
        {"nas/executors/base.py": "if TYPE_CHECKING:\n    from nas.stages.learn import Run"},
        {
            "nas/executors/ray.py": "import nas.retrain",
            "nas/retrain.py": "import nas.stages.learn",
        },
    ],
)
def test_a_cycle_of_packages_whose_modules_form_none_is_found(
    tmp_path: Path, back: dict[str, str]
) -> None:
    tree = _tree(tmp_path, PACKAGES | back)
    assert cycle(module_arrows(*tree)) == []
    assert set(cycle(package_arrows(*tree))) >= {"nas.executors", "nas.stages"}


def test_packages_on_a_common_floor_are_fine(tmp_path: Path) -> None:
    files = {
        "nas/executors/ray.py": "import nas.run.evaluator, nas.executors.local",
        "nas/stages/learn.py": "import nas.run.evaluator, nas.stages.base",
    }
    assert cycle(package_arrows(*_tree(tmp_path, PACKAGES | files))) == []
