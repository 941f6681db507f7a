"""The names of a run's files: said once in the code, and told in the docs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from nas.objectives import OBJECTIVES
from nas.run import layout, stages

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = ROOT / "docs" / "run_folder.md"
# Names that files elsewhere have too: locks, and what studies keep of networks of their own.
OF_OBJECTIVES = (layout.profile_file, layout.predictor_file, layout.measured_file)
LOCK, OF_STUDIES = ".lock", {"result.json", "weights.pt"}


def table() -> set[str]:
    """Every name, with ``*`` for what differs from run to run."""
    found = {value for name, value in vars(layout).items() if name.isupper()}
    found |= {value for name, value in vars(stages).items() if name.endswith("_FILE")}
    for one in OBJECTIVES.values():
        found |= {layout.predictor_file(one.stage)} if one.stage else set()
        found |= {layout.profile_file(one.stage)} if one.timed else set()
        found |= {layout.measured_file(one.stage)} if one.measure else set()
    functions = [one for one in vars(layout).values() if inspect.isfunction(one)]
    functions = [one for one in functions if one not in OF_OBJECTIVES]
    return found | {one(*("*" for _ in inspect.signature(one).parameters)) for one in functions}


def files() -> set[str]:
    """The last parts of all names that are those of files."""
    last = {name.rsplit("/")[-1] for name in table()} - {LOCK}
    return {name for name in last if "." in name and "*" not in name}


def spelled(source: str, names: set[str]) -> list[str]:
    """The strings of a module, docstrings and sentences aside, that end with one of the names."""
    tree = ast.parse(source)
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    return [
        f"line {node.lineno}: {node.value}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if id(node) not in texts and node.value.rsplit("/")[-1] in names
    ]


@pytest.mark.parametrize("package", ["nas", "service", "experiments"])
def test_no_other_module_spells_a_name(package: str) -> None:
    names = files() - (OF_STUDIES if package == "experiments" else set())
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in (ROOT / package).rglob("*.py")
        if path not in (Path(layout.__file__), Path(stages.__file__))
        if (lines := spelled(path.read_text("utf-8"), names))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("open('pareto.json')", 1),
        ("open(f'{run}/pareto.json')", 1),
        ("open(run / 'latency' / 'profile.jsonl')", 1),
        ('"""pareto.json"""', 0),
        ("help = 'writes pareto.json anew'", 0),
        ("open('other.json')", 0),
    ],
)
def test_spelled_names_are_found(source: str, count: int) -> None:
    assert len(spelled(source, files())) == count


def test_the_document_names_exactly_these() -> None:
    lines = DOCUMENT.read_text("utf-8").split("\n## ")[0].splitlines()
    first = [line.split("|")[1] for line in lines if line.startswith("| `")]

    def names(parts: list[str]) -> set[str]:
        found = [name.rstrip("/") for part in parts for name in re.findall(r"`([^`]+)`", part)]
        return {re.sub(r"\b(ID|NAME|KEY|FORMAT)\b", "*", name) for name in found}

    assert names(first) - table() == {"retrained/*/tuning/*"}
    assert table() - names(lines) == {
        "retrained/*/tuning",  # the folder of the above
        "weights.pt",  # of a setting that was tried
        "workers",
    }
