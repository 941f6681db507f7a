"""The checks of imports find what they are for, in small trees made up for them."""

from __future__ import annotations

from collections.abc import Callable
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
    private_violations,
)


def _tree(root: Path, files: dict[str, str]) -> tuple[list[Import], dict[str, Path]]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    known = modules(root)
    return imports(known), known


# Each line a file and its text, in a tree of its own.
UPWARD = [
    ("search_spaces/a.py", "import nas.search.pareto"),
    ("search_spaces/a.py", "from supernet import layers"),
    ("nas/a.py", "from experiments.study import run"),
    ("nas/a.py", "def late():\n    import service.app"),
    ("nas/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import service"),
    ("supernet/deep/a.py", "from latency.timer import time_calls"),
    ("latency/a.py", "import supernet"),
    ("experiments/a.py", "from service import app"),
    ("nas/a.py", "from tests.support.naive_attention import softmax"),
]
DOWNWARD = [
    ("nas/a.py", "import supernet.layers, latency.timer, search_spaces"),
    ("nas/a.py", "from . import b\nfrom .b import c\nimport nas.b"),
    ("experiments/a.py", "import nas, supernet"),
    ("nas/a.py", "import nasty, testsuite, numpy"),
]
HEAVY_ELSEWHERE = [
    ("search_spaces/a.py", "import torch"),
    ("nas/search/pareto.py", "def late():\n    from torch import nn"),
    ("nas/executors/local.py", "import ray.util"),
    ("supernet/encoder_models.py", "from fairseq.models import FairseqModel"),
    ("service/app.py", "from sqlalchemy import select"),
    ("nas/search/front.py", "import moocore"),
]
HEAVY_AT_HOME = [
    ("supernet/deep/a.py", "import torch"),
    ("nas/stages/train.py", "import torch"),
    ("nas/executors/ray.py", "import ray"),
    ("service/jobs/sql.py", "import sqlalchemy"),
    ("nas/a.py", "import rayleigh, torchless"),
]
BACK = [
    "import nas.a",
    "from nas import a",
    "from . import a",
    "try:\n    from .a import x\nfinally: x",
    "if TYPE_CHECKING:\n    x = 1\nelse:\n    import nas.a",
    "def late():\n    import nas.a",
    "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nas.a",
]


def _found(
    root: Path, cases: list[tuple[str, str]], rule: Callable[[list[Import]], list[str]]
) -> list[int]:
    """How many violations each case is told of."""
    return [
        len(rule(_tree(root / str(number), {file: text})[0]))
        for number, (file, text) in enumerate(cases)
    ]


def test_upward_and_sideways_imports_are_found(tmp_path: Path) -> None:
    assert _found(tmp_path, UPWARD, floor_violations) == [1] * len(UPWARD)


def test_downward_imports_are_fine(tmp_path: Path) -> None:
    assert _found(tmp_path, DOWNWARD, floor_violations) == [0] * len(DOWNWARD)


def test_heavy_libraries_elsewhere_are_found(tmp_path: Path) -> None:
    assert _found(tmp_path, HEAVY_ELSEWHERE, heavy_violations) == [1] * len(HEAVY_ELSEWHERE)


def test_heavy_libraries_in_their_modules_are_fine(tmp_path: Path) -> None:
    assert _found(tmp_path, HEAVY_AT_HOME, heavy_violations) == [0] * len(HEAVY_AT_HOME)


def test_a_room_is_private_to_its_own_package(tmp_path: Path) -> None:
    files = [
        ("service/a.py", "from nas.console.app import app"),
        ("nas/console/a.py", "import nas.console.app"),
    ]
    assert _found(tmp_path, files, private_violations) == [1, 0]


def test_a_cycle_is_found(tmp_path: Path) -> None:
    for number, back in enumerate(BACK):
        files = {"nas/a.py": "from nas.b import y", "nas/b.py": back}
        arrows = module_arrows(*_tree(tmp_path / str(number), files))
        assert set(cycle(arrows)) == {"nas.a", "nas.b"}, back


def test_a_cycle_over_three_packages_is_found(tmp_path: Path) -> None:
    files = {
        "nas/__init__.py": "from nas.console.app import main",
        "nas/console/app.py": "from ..stages import run",
        "nas/stages.py": "import nas",
    }
    assert len(set(cycle(module_arrows(*_tree(tmp_path, files))))) == 3


def test_an_import_of_others_is_no_cycle(tmp_path: Path) -> None:
    for number, back in enumerate(("import nas", "import nas.c", "import nas.b")):
        files = {"nas/a.py": "from nas.b import y", "nas/b.py": back, "nas/c.py": ""}
        assert cycle(module_arrows(*_tree(tmp_path / str(number), files))) == [], back


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
