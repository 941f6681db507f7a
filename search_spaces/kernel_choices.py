"""Several linear kernels in the ``[model]`` of a space: a gene, where one is a setting.

``linear_kernel = ["elu", "hedgehog"]`` says that the kind ``linear`` among the choices stands for
``linear:elu`` and ``linear:hedgehog``. What is read of a space is the document that says so choice
by choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from search_spaces.architecture import LINEAR_KERNELS
from search_spaces.toml.source import KeyPath, TomlSource, shown, unknown_name

_KEY = "linear_kernel"
_STACKS = ("encoder", "decoder")


def with_kernel_choices(source: TomlSource) -> TomlSource:
    """A space's document with one linear kernel, the first, and variants where it lists several.

    Raises:
        SpaceFileError: for a list that is empty or names a kernel twice or one that there is not,
            and for choices that have both ``linear`` and one of its variants.
    """
    model = source.data.get("model")
    given = model.get(_KEY) if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(given, list):
        return source
    _check_kernels(source, given)
    data = {**source.data, "model": {**model, _KEY: given[0]}}
    if len(given) > 1:
        variants = [f"linear:{kernel}" for kernel in given]
        for stack in _STACKS:
            if isinstance(table := data.get(stack), Mapping):
                data[stack] = _with_variants(source, (stack,), table, variants)
    return replace(source, data=data)


def _check_kernels(source: TomlSource, given: Sequence[object]) -> None:
    path = ("model", _KEY)
    if not given:
        names = ", ".join(map(repr, LINEAR_KERNELS))
        raise source.error(path, f"found no kernel, allowed are one or a list of several: {names}")
    for kernel in given:
        if kernel not in LINEAR_KERNELS:
            name = kernel if isinstance(kernel, str) else shown(kernel)
            raise source.error(path, unknown_name(name, LINEAR_KERNELS))
        if given.count(kernel) > 1:
            raise source.error(path, f"found {shown(kernel)} more than once; each kernel once")


def _with_variants(
    source: TomlSource, path: KeyPath, table: Mapping[str, Any], variants: Sequence[str]
) -> dict[str, Any]:
    """A stack's table, or the part of it for single layers, with all variants for ``linear``."""
    return {
        key: _with_variants(source, (*path, key), value, variants)
        if isinstance(value, Mapping)
        else _expanded(source, (*path, key), value, variants)
        for key, value in table.items()
    }


def _expanded(source: TomlSource, path: KeyPath, value: object, variants: Sequence[str]) -> object:
    if not path[-1].endswith("attention") or not isinstance(value, list) or "linear" not in value:
        return value
    for variant in variants:
        if variant in value:
            raise source.error(
                path,
                f"found 'linear' and {variant!r}, which is a part of it: with several kernels in "
                f"model.{_KEY} 'linear' stands for {', '.join(variants)}; name each once",
            )
    choices = list[object]()
    for choice in value:
        choices += variants if choice == "linear" else [choice]
    return choices
