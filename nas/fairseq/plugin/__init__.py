"""The plug-in for fairseq: give `USER_DIR` to its commands as ``--user-dir``.

The folder has a floor of its own because fairseq puts the folder around it on the path. For other
machines it is written together with the modules of ours that it needs: every import in the source
counts, also those inside of functions.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("search_spaces", "supernet", "nas")
USER_DIR = Path(__file__).parent / "nas_fairseq"

NOTICE = """Modules of the package nas-service, copied as they are, under the Apache License 2.0
(http://www.apache.org/licenses/LICENSE-2.0).
"""


def write_plugin(folder: Path) -> list[Path]:
    """Write the plug-in for ``--user-dir`` with all modules it needs.

    Args:
        folder: exists and is empty; called as `USER_DIR` is once it is used.

    Returns:
        The files written.
    """
    sources = sorted(USER_DIR.glob("*.py"))
    for file in sources:
        shutil.copyfile(file, folder / file.name)
    return [*(folder / file.name for file in sources), *copy_modules(sources, folder / "lib")]


def needed_modules(files: Iterable[Path]) -> dict[str, Path]:
    """Dotted name → file of every module of ours that these files need, packages included."""
    found: dict[str, Path] = {}
    todo = [name for file in files for name in _imports(file)]
    while todo:
        name = todo.pop()
        file = _file_of(name)
        if name in found or file is None:
            continue
        found[name] = file
        parts = name.split(".")
        todo += [".".join(parts[:count]) for count in range(1, len(parts))]
        todo += _imports(file)
    return dict(sorted(found.items()))


def copy_modules(files: Iterable[Path], folder: Path) -> list[Path]:
    """Copy what these files need into a folder that can stand on the path.

    Args:
        files: the modules that are there already.
        folder: made if it is not there.

    Returns:
        The files written.
    """
    written = []
    for source in needed_modules(files).values():
        target = folder / source.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        written.append(target)
    notice = folder / "NOTICE"
    notice.write_text(NOTICE, encoding="utf-8")
    return [*written, notice]


def _imports(file: Path) -> Iterator[str]:
    """Every name below our packages that a file imports; some may be no modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.split(".")[0] in PACKAGES)


def _file_of(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file
    return None
