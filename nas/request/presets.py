"""Budgets by name. A space's own ``[presets.NAME]`` tables override these."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from nas.request.spec import Budget, build_budget
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.space import SearchSpace

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "smoke": {
        "supernet": {"epochs": 4},
        "observations": 32,
        "rounds": {"first": 16},
        "latency_samples": 12,
        "timing_rounds": 5,
        "evolution": {"population": 32, "generations": 8},
        "verified": 10,
        "retrain": {"epochs": 4},
    },
    "quick": {},
    "standard": {
        "supernet": {"epochs": 150},
        "observations": 400,
        "rounds": {"first": 64, "patience": 6},
        "latency_samples": 100,
        "timing_rounds": 31,
        "evolution": {"population": 128, "generations": 80},
        "verified": 48,
        "retrain": {"epochs": 200},
    },
    "paper": {
        "supernet": {"epochs": 500},
        "observations": 2000,
        "rounds": {"first": 128, "batch": 16, "patience": 10},
        "latency_samples": 400,
        "timing_rounds": 51,
        "evolution": {"population": 128, "generations": 200},
        "verified": 100,
        "retrain": {"epochs": 500},
    },
}


def budget_for(space: SearchSpace, preset: str, overrides: Mapping[str, str]) -> Budget:
    """The numbers of a preset, then the space's own, then the user's.

    Args:
        space: its ``[presets]`` tables may override any number.
        preset: ``smoke``, ``quick``, ``standard`` or ``paper``.
        overrides: dotted names of numbers → new values as text, for example
            ``{"supernet.epochs": "30"}``.

    Raises:
        UnknownNameError: for an unknown preset.
        UsageError: for an unknown number or a value out of its range.
    """
    merged = preset_values(space, preset)
    for name, text in overrides.items():
        merged = _merge(merged, _nested(name, text))
    return build_budget(merged)


def preset_values(space: SearchSpace, preset: str) -> dict[str, Any]:
    """What a preset and a space's table for it say, not checked.

    Raises:
        UnknownNameError: for an unknown preset.
    """
    if preset not in PRESETS:
        nearest = difflib.get_close_matches(preset, PRESETS, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise UnknownNameError(f"no preset {preset!r}{hint} (there are {', '.join(PRESETS)})")
    return _merge(PRESETS[preset], space.presets.get(preset, {}))


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(below, value) if both else value  # type: ignore[arg-type]
    return merged


def _nested(name: str, text: str) -> dict[str, Any]:
    parts = name.split(".")
    if not all(parts) or len(parts) > 2:
        raise UsageError(
            f"--set takes NAME=VALUE, for example supernet.epochs=30; given {name}={text}"
        )
    value: Any = text
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def setting_names() -> list[str]:
    """Dotted names of all numbers of a budget."""
    return [name for name, _ in flat(Budget())]


def flat(budget: Budget) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of all numbers of a budget."""
    for name, value in budget.model_dump().items():
        if isinstance(value, dict):
            yield from ((f"{name}.{part}", number) for part, number in value.items())
        else:
            yield name, value
