"""Choices that pruning may not cut, protected by `--keep`.

Each names a gene (``encoder.attention``, all layers) or a slot (``encoder.2.attention``) and the
choices of it that stay. It is written ``encoder.attention=omni,linear``; the word ``all`` keeps
every choice, so that nothing is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from nas.request.fields import gene_choices, nearest
from search_spaces.errors import UnknownNameError, UsageError
from search_spaces.space import Choice, SearchSpace
from search_spaces.wording import mark

ProtectedChoices = Mapping[str, tuple[Choice, ...]]

ALL: Literal["all"] = "all"
NONE = "none"


def read_protected(space: SearchSpace, given: Sequence[str]) -> dict[str, tuple[Choice, ...]]:
    """``["encoder.attention=omni,linear"]`` → ``{"encoder.attention": ("linear", "omni")}``.

    Args:
        space: whose genes and choices may be named.
        given: ``NAME=CHOICE,CHOICE`` each, or the one word ``all`` or ``none``.

    Raises:
        UsageError: for another form.
        UnknownNameError: for a gene or choice that the space has not, naming the nearest.
    """
    found = checked_protected(space, typed_choices(mark("keep"), given))
    check_layers(space, found)
    return found


def typed_choices(called: str, texts: Sequence[str]) -> dict[str, list[str]] | Literal["all"]:
    """The same before the space is known.

    Raises:
        UsageError: for another form.
    """
    given = [text.strip() for text in texts]
    if ALL in given or NONE in given:
        if len(given) > 1:
            raise UsageError(f"{called} {ALL} and {called} {NONE} stand alone; given {given}")
        return ALL if given == [ALL] else {}
    return gene_choices(called, given)


def checked_protected(
    space: SearchSpace, wanted: Mapping[str, Sequence[Choice]] | Literal["all"]
) -> dict[str, tuple[Choice, ...]]:
    """The same protected in the order of the space, each choice once; numbers may come as text.

    Raises:
        UnknownNameError: for a gene or choice that the space has not, naming the nearest.
    """
    if isinstance(wanted, str):
        return everything(space)
    offered = everything(space) | {slot.name: slot.choices for slot in space.slots}
    for name, choices in wanted.items():
        if name not in offered:
            raise UnknownNameError(
                f"the space {space.name} has no gene {name!r}"
                f"{nearest(name, offered)} (nas space show lists genes and choices)"
            )
        known = {str(choice) for choice in offered[name]}
        for choice in choices:
            if str(choice) not in known:
                raise UnknownNameError(
                    f"{name} has no choice {str(choice)!r} in the space {space.name}: it "
                    f"has {', '.join(map(str, offered[name]))}{nearest(str(choice), known)} "
                    "(nas space show lists genes and choices)"
                )
    named = {name: {str(choice) for choice in choices} for name, choices in wanted.items()}
    kept = {
        name: tuple(choice for choice in choices if str(choice) in named.get(name, ()))
        for name, choices in offered.items()
    }
    return {name: choices for name, choices in kept.items() if choices}


def check_layers(space: SearchSpace, names: Iterable[str]) -> None:
    """Refuse to protect what no network has.

    Args:
        space: of the networks.
        names: genes and slots of it.

    Raises:
        UsageError: for a slot of a layer behind the deepest one.
    """
    for name in names:
        slot = space.slots[space.slot_index[name]] if name in space.slot_index else None
        if slot is None or slot.layer is None:
            continue
        if slot.layer >= (layers := space.max_layers(slot.stack)):
            raise UsageError(
                f"{name} cannot be protected: no network that is searched has a layer {slot.layer} "
                f"there; the last one is {layers - 1}"
            )


def everything(space: SearchSpace) -> dict[str, tuple[Choice, ...]]:
    """Every choice of every gene: with these protected nothing can be cut."""
    genes: dict[str, list[Choice]] = {}
    for slot in space.slots:
        known = genes.setdefault(slot.gene_name, [])
        known += [choice for choice in slot.choices if choice not in known]
    return {name: tuple(choices) for name, choices in genes.items()}


def places(space: SearchSpace, protected: Mapping[str, Sequence[Choice]]) -> set[tuple[int, int]]:
    """The genotype columns and choice indices that protected name."""
    return {
        (column, slot.choices.index(choice))
        for column, slot in enumerate(space.slots)
        for name in {slot.name, slot.gene_name} & protected.keys()
        for choice in protected[name]
        if choice in slot.choices
    }


def deepest_layers(space: SearchSpace, protected: Iterable[str]) -> dict[str, int]:
    """For each stack the last layer (from 0) of which a single slot is protected.

    A choice of a layer that no network has any more would be kept in name only.
    """
    deepest: dict[str, int] = {}
    for name in protected:
        column = space.slot_index.get(name)
        layer = None if column is None else space.slots[column].layer
        if column is not None and layer is not None:
            stack = space.slots[column].stack
            deepest[stack] = max(layer, deepest.get(stack, 0))
    return deepest


def spelled(space: SearchSpace, protected: Mapping[str, Sequence[Choice]]) -> list[str]:
    """They as ``--keep`` takes them, ``all`` for every choice; an empty list for none."""
    if protected and dict(protected) == everything(space):
        return [ALL]
    return [f"{name}={','.join(map(str, choices))}" for name, choices in protected.items()]


def as_options(protected: Sequence[str]) -> str:
    """Those of `spelled` as they are typed: ``--keep A=x,y --keep B=z``, or none."""
    return " ".join(f"--keep {one}" for one in protected) or NONE
