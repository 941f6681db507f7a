"""Import statements of generated files: those that are in use, sorted into groups."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable

Statement = ast.Import | ast.ImportFrom


def import_block(statements: Iterable[Statement], names: Collection[str]) -> str:
    """The statements that bring along a name in use: the standard library, others, neighbours.

    Args:
        statements: of one or several modules; the same name may come up more than once.
        names: that are in use.
    """
    plain, chosen = set[str](), dict[str, set[str]]()
    for node in statements:
        if isinstance(node, ast.Import):
            plain |= {_import(one) for one in node.names if _bound(one) in names}
            continue
        module = "." * node.level + (node.module or "")
        used = {one.name for one in node.names if _bound(one) in names}
        if used and module != "__future__":
            chosen.setdefault(module, set()).update(used)
    lines = sorted(plain)
    lines += [f"from {module} import {_listed(chosen[module])}" for module in sorted(chosen)]
    groups = {line: _group(line) for line in lines}
    blocks = ["\n".join(line for line in lines if groups[line] == group) for group in range(3)]
    return "\n\n".join(["from __future__ import annotations", *filter(None, blocks)])


def _group(line: str) -> int:
    """0 for the standard library, 1 for other packages, 2 for neighbours in a folder."""
    module = line.split()[1]
    if module.startswith("."):
        return 2
    return 0 if module.split(".")[0] in sys.stdlib_module_names else 1


def _listed(names: Collection[str]) -> str:
    """Constants, then classes, then functions, each by name, as import sorters have it."""
    return ", ".join(sorted(names, key=lambda n: (not n.isupper(), not n[0].isupper(), n)))


def _import(alias: ast.alias) -> str:
    return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.split(".")[0]
