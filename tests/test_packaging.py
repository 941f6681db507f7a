"""What pyproject.toml and constraints.txt promise is what the code needs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.layering_rules import parsed

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PACKAGES = ("search_spaces", "supernet", "latency", "nas", "service", "experiments")

# Import name → distribution, where they differ and it need not be installed.
ELSEWHERE = {"fairseq": "fairseq-fixed"}

# What a CUDA build of torch brings along differs by machine and is pinned by that build itself.
BUILD_PARTS = ("nvidia-", "cuda-", "triton")


def declared() -> dict[str, Requirement]:
    return _by_name(PROJECT["dependencies"])


def development() -> dict[str, Requirement]:
    """What `make install-dev` adds: the extra `dev` with the extras that it names."""
    return _by_name(extra("dev"))


def extra(name: str) -> list[str]:
    lines = []
    for line in PROJECT["optional-dependencies"][name]:
        own = Requirement(line).name == PROJECT["name"]
        extras = Requirement(line).extras if own else ()
        lines += [part for one in sorted(extras) for part in extra(one)] if own else [line]
    return lines


def optional() -> dict[str, Requirement]:
    extras = PROJECT["optional-dependencies"]
    return _by_name([line for name in sorted(set(extras) - {"dev"}) for line in extras[name]])


def pinned() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return _by_name([line for line in lines if line and not line.startswith("#")])


def _by_name(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}


def imported() -> set[str]:
    """Top-level names of everything our packages import."""
    names = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.split(".")[0])
    return names


def needed() -> set[str]:
    """Distributions behind the imports that are neither ours nor Python's."""
    foreign = imported() - set(PACKAGES) - sys.stdlib_module_names
    # An optional library may be absent, or there as another distribution of the same package.
    owners = {name: [name] for name in optional()}
    owners = {**metadata.packages_distributions(), **owners}
    owners |= {name: [distribution] for name, distribution in ELSEWHERE.items()}
    return {canonicalize_name(owners[name][0]) if name in owners else name for name in foreign}


def test_every_imported_library_is_declared() -> None:
    assert needed() - set(declared() | optional()) == set()


def test_every_declared_library_is_imported() -> None:
    assert set(declared()) - needed() == set()


def test_every_constraint_is_one_exact_version() -> None:
    for requirement in pinned().values():
        assert re.fullmatch(r"==\d[\w.]*", str(requirement.specifier)), requirement
        assert requirement.url is None


def test_constraints_meet_the_declared_ranges() -> None:
    versions = {name: str(pin.specifier)[2:] for name, pin in pinned().items()}
    for name, requirement in (declared() | development()).items():
        assert versions[name] in requirement.specifier, requirement


def test_constraints_name_everything_that_gets_installed() -> None:
    pins, todo, seen = set(pinned()), list(declared() | development()), set[str]()
    while todo:
        name = todo.pop()
        if name in seen or name.startswith(BUILD_PARTS):
            continue
        seen.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                todo.append(canonicalize_name(requirement.name))
    assert seen - pins == set()


def test_every_package_folder_is_shipped() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    shipped = {pattern.rstrip("*") for pattern in tools["packages"]["find"]["include"]}
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    assert shipped == folders


def test_what_coverage_leaves_out_is_there() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    for pattern in tools["coverage"]["run"]["omit"]:
        assert [*ROOT.glob(pattern)], pattern


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
