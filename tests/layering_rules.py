"""The rules for imports, and what finds in the source who keeps to them.

The source is read with `ast`. An import inside a function or for the type checker counts like any
other, for it tells as well who knows whom. Only `loaded` runs an interpreter and looks.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

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
    "nas.stages.*",
    "nas.run.stage_runner",
    "nas.run.opened",
    "nas.run.layer_distillation",
    "nas.run.supernet_training",
    "nas.run.training_memory",
    "nas.run.network_training",
    "nas.run.evaluator*",
    "nas.run.pace",
    "nas.results.predictions",
    "nas.run.checkpoint",
    "nas.profiling.timed_work",
    "nas.profiling.onnx_timing",
    "nas.profiling.profile_device",
    "nas.profiling.latency_meter",
    "nas.executors.ray*",
    "nas.executors.retraining.network",
    "nas.executors.retraining.stage",
    "nas.executors.retraining.trial",
    "nas.executors.retraining.tuning",
    "nas.fairseq.checkpoint",
    "nas.fairseq.export",
    "nas.fairseq.plugin.nas_fairseq*",
)
# Those of them that load torch only when they are called.
LATE = ("nas.stages.feasibility", "nas.stages.pipeline")

# Library → the modules that may import it, at the top or inside a function.
HEAVY: dict[str, tuple[str, ...]] = {
    "torch": ("supernet", "supernet.*", "latency.*", "experiments.*", *JOINTS),
    "ray": ("nas.executors.ray*", "nas.executors.retraining.tuning", "experiments.ray_*"),
    "fairseq": ("nas.fairseq.plugin.nas_fairseq*",),
    "onnx": ("supernet.export.onnx",),
    "onnxscript": ("supernet.export.onnx",),
    "onnxruntime": (
        "supernet.export.onnx",
        "supernet.export.onnx_driver",
        "supernet.export.onnx_failures",
    ),
    "optuna": ("nas.search.searchers.optuna_study",),
    "sqlalchemy": ("service.jobs.*",),
    "alembic": ("service.jobs.migrate", "service.jobs.migrations.*"),
    "pandas": (
        "nas.results.tables",
        "nas.run.evaluators.table",
        "service.client",
        "supernet.data.prepare.csv_records",
    ),
    "pyarrow": ("supernet.data.prepare.records",),
    "plotly": ("nas.report*",),
    "sacrebleu": ("supernet.tasks.bleu",),
    "moocore": ("nas.search.pareto",),
    "tensorboard": ("nas.console.listeners.tensorboard",),
    "mlflow": ("nas.console.listeners.mlflow",),
    "safetensors": ("supernet.export.*", "supernet.pretrained.*"),
    "tokenizers": (
        "supernet.data.byte_pairs",
        "supernet.data.checkpoint_tokenizer",
        "supernet.export.onnx_driver",
        "experiments.small_llama",
    ),
    "transformers": ("supernet.export.*", "experiments.small_llama"),
}

# Room → the only ones that may import it; what commands of others share stands beside it.
PRIVATE: dict[str, tuple[str, ...]] = {
    "nas.console.app": ("nas.console.*", "experiments.*"),
    "nas.console.commands": ("nas.console.*", "nas.fairseq.command", "experiments.*"),
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


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The tree of a file, read once for all tests of a process."""
    return ast.parse(path.read_text("utf-8"))


def imports(known: dict[str, Path]) -> list[Import]:
    """Every import in the given modules, wherever it stands."""
    found = []
    for name, path in known.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for node in ast.walk(parsed(path)):
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
        if allowed is not None and not matches(item.source, allowed):
            wrong.append(f"{item.source}:{item.line} imports {item.target}")
    return wrong


def private_violations(found: Iterable[Import]) -> list[str]:
    """Imports of a room by those that it is not for."""
    return [
        f"{item.source}:{item.line} imports {item.target}"
        for item in found
        for room, allowed in PRIVATE.items()
        if matches(item.target, (room, f"{room}.*")) and not matches(item.source, allowed)
    ]


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a module's name fits one of the patterns."""
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
