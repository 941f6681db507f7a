"""Vetoes: choices that pruning may not cut, because somebody says so.

A veto names a gene (``encoder.attention``, all layers) or a slot (``encoder.2.attention``) and the
choices of it that stay. It is written ``encoder.attention=omni,linear``; the word ``all`` keeps
every choice, so that nothing is cut.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.space import Choice, SearchSpace

Vetoes = Mapping[str, tuple[Choice, ...]]

ALL, NONE = "all", "none"
EXAMPLE = "encoder.attention=omni"


def read_vetoes(space: SearchSpace, given: Iterable[str]) -> dict[str, tuple[Choice, ...]]:
    """``["encoder.attention=omni,linear"]`` → ``{"encoder.attention": ("linear", "omni")}``.

    Args:
        space: whose genes and choices may be named.
        given: ``NAME=CHOICE,CHOICE`` each, or the one word ``all`` or ``none``.

    Raises:
        UsageError: for another form.
        UnknownNameError: for a gene or choice that the space has not, naming the nearest.
    """
    texts = [text.strip() for text in given]
    if ALL in texts or NONE in texts:
        if len(texts) > 1:
            raise UsageError(
                f"--keep {ALL} and --keep {NONE} stand alone; given {', '.join(texts)}"
            )
        return everything(space) if texts == [ALL] else {}
    wanted: dict[str, list[Choice]] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        choices = [value.strip() for value in values.split(",")]
        if not (name and equals and all(choices)):
            raise UsageError(
                f"--keep takes GENE=CHOICE, for example {EXAMPLE}, or {ALL}, or {NONE}; "
                f"given {text!r}"
            )
        wanted.setdefault(name, []).extend(choices)
    return checked_vetoes(space, wanted)


def checked_vetoes(
    space: SearchSpace, wanted: Mapping[str, Sequence[Choice]]
) -> dict[str, tuple[Choice, ...]]:
    """The same vetoes in the order of the space, each choice once; numbers may come as text.

    Raises:
        UnknownNameError: for a gene or choice that the space has not, naming the nearest.
    """
    offered = everything(space) | {slot.name: slot.choices for slot in space.slots}
    for name, choices in wanted.items():
        if name not in offered:
            raise UnknownNameError(
                f"the space {space.name} has no gene {name!r} to keep choices of"
                f"{_nearest(name, offered)} (nas space show lists genes and choices)"
            )
        known = {str(choice) for choice in offered[name]}
        for choice in choices:
            if str(choice) not in known:
                raise UnknownNameError(
                    f"{name} has no choice {str(choice)!r} to keep in the space {space.name}: it "
                    f"has {', '.join(map(str, offered[name]))}{_nearest(str(choice), known)} "
                    "(nas space show lists genes and choices)"
                )
    named = {name: {str(choice) for choice in choices} for name, choices in wanted.items()}
    kept = {
        name: tuple(choice for choice in choices if str(choice) in named.get(name, ()))
        for name, choices in offered.items()
    }
    return {name: choices for name, choices in kept.items() if choices}


def everything(space: SearchSpace) -> dict[str, tuple[Choice, ...]]:
    """Every choice of every gene: with these vetoes nothing can be cut."""
    genes: dict[str, list[Choice]] = {}
    for slot in space.slots:
        known = genes.setdefault(slot.gene_name, [])
        known += [choice for choice in slot.choices if choice not in known]
    return {name: tuple(choices) for name, choices in genes.items()}


def places(space: SearchSpace, vetoes: Mapping[str, Sequence[Choice]]) -> set[tuple[int, int]]:
    """The genotype columns and choice indices that vetoes name."""
    return {
        (column, slot.choices.index(choice))
        for column, slot in enumerate(space.slots)
        for name in {slot.name, slot.gene_name} & vetoes.keys()
        for choice in vetoes[name]
        if choice in slot.choices
    }


def deepest_layers(space: SearchSpace, vetoes: Iterable[str]) -> dict[str, int]:
    """For each stack the last layer (from 0) that a veto of a single slot names.

    A choice of a layer that no network has any more would be kept in name only.
    """
    deepest: dict[str, int] = {}
    for name in vetoes:
        column = space.slot_index.get(name)
        layer = None if column is None else space.slots[column].layer
        if column is not None and layer is not None:
            stack = space.slots[column].stack
            deepest[stack] = max(layer, deepest.get(stack, 0))
    return deepest


def spelled(space: SearchSpace, vetoes: Mapping[str, Sequence[Choice]]) -> list[str]:
    """Vetoes as ``--keep`` takes them, ``all`` for every choice; an empty list for none."""
    if vetoes and dict(vetoes) == everything(space):
        return [ALL]
    return [f"{name}={','.join(map(str, choices))}" for name, choices in vetoes.items()]


def as_options(vetoes: Sequence[str]) -> str:
    """Vetoes as `spelled` gives them, as they are typed: ``--keep A=x,y --keep B=z``, or none."""
    return " ".join(f"--keep {veto}" for veto in vetoes) or NONE


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""
