"""The checks of imports find what they are for, in small trees made up for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.layering_rules import (
    Import,
    cycle,
    floor_violations,
    heavy_violations,
    imports,
    module_arrows,
    modules,
    package_arrows,
)


def _tree(root: Path, files: dict[str, str]) -> tuple[list[Import], dict[str, Path]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    known = modules(root)
    return imports(known), known


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("search_spaces/a.py", "import nas.search.pareto"),
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
        ("nas/search/pareto.py", "def late():\n    from torch import nn"),
        ("nas/cli/app.py", "import torch.nn as nn"),
        ("nas/stages/pipeline.py", "import ray"),
        ("nas/executors/local.py", "import ray.util"),
        ("supernet/models.py", "from fairseq.models import FairseqModel"),
        ("nas/search/evolution.py", "import optuna"),
        ("service/app.py", "from sqlalchemy import select"),
        ("experiments/a.py", "import plotly.graph_objects"),
        ("nas/console/progress.py", "import tensorboard.summary"),
        ("nas/search/front.py", "import moocore"),
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
        ("nas/stages/retrain.py", "import torch"),
        ("nas/executors/ray.py", "import ray"),
        ("nas/report_figures.py", "import plotly.graph_objects"),
        ("service/jobs/sql.py", "import sqlalchemy"),
        (
            "nas/cli/listeners/mlflow.py",
            "def late():\n    from mlflow.tracking import MlflowClient",
        ),
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
            "nas/executors/ray.py": "import nas.loose",
            "nas/loose.py": "import nas.stages.learn",
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
