"""What has to fit together in a space: checks of values that depend on several keys of its file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from search_spaces.attention import operator_of
from search_spaces.settings import OmniKernel
from search_spaces.space import MEMORY_GENE, SearchSpace, Slot
from search_spaces.toml_source import TomlSource

MAX_ALL_CHOICES = 20_000  # over all layers
LARGEST = 10**300  # networks; scores and tables hold their number as a float


def check_space(source: TomlSource, space: SearchSpace) -> None:
    """Refuse a space whose parts contradict each other, or that is too large to count in.

    Raises:
        SpaceFileError: for the first mistake.
    """
    _check_size(source, space)
    _check_heads(source, space)
    _check_decoder(source, space)
    _check_memory(source, space)


def check_number(source: TomlSource, slots: Sequence[Slot]) -> None:
    """Refuse so many choices that everything done with them takes too long.

    Raises:
        SpaceFileError: naming the stack.
    """
    number = sum(len(slot.choices) for slot in slots)
    if number > MAX_ALL_CHOICES:
        raise source.error(
            (slots[0].stack,),
            f"found {number:,} choices over all layers, allowed are {MAX_ALL_CHOICES:,}: "
            "leave out choices or layers",
        )


def _check_size(source: TomlSource, space: SearchSpace) -> None:
    if space.size > LARGEST:
        raise source.error(
            (space.stacks[0],),
            f"the space holds more than 10^{len(str(LARGEST)) - 1} networks, more than can be "
            "counted with: leave out choices or layers",
        )


def _check_heads(source: TomlSource, space: SearchSpace) -> None:
    width = space.model.qkv_dim
    for slot in space.slots:
        if slot.gene.endswith("num_heads") and width is not None:
            for heads in slot.choices:
                if width % int(heads):
                    raise source.error(
                        (slot.stack, slot.gene),
                        f"found {heads}, allowed are numbers that divide model.qkv_dim = {width}",
                    )


def _check_decoder(source: TomlSource, space: SearchSpace) -> None:
    for slot in space.slots:
        if slot.gene == "ende_connect":
            shallowest = int(min(space.slot("encoder.num_layers").choices))
            if int(max(slot.choices)) > shallowest:
                raise source.error(
                    (slot.stack, slot.gene),
                    f"found {max(slot.choices)}, allowed is at most {shallowest}, the smallest "
                    "of encoder.num_layers",
                )
        omni = slot.stack == "decoder" and "omni" in slot.choices
        if omni and not operator_of(space.model, "omni").causal:
            kernels = (replace(space.model, omni_kernel=name) for name in get_args(OmniKernel))
            allowed = [m.omni_kernel for m in kernels if operator_of(m, "omni").causal]
            raise source.error(
                (slot.stack, slot.gene),
                f"found 'omni' with model.omni_kernel = {space.model.omni_kernel!r}, which mixes "
                "positions before it attends, so it cannot be causal; allowed in decoders are "
                f"{', '.join(map(repr, allowed))}",
            )


def _check_memory(source: TomlSource, space: SearchSpace) -> None:
    column = space.slot_index.get(f"decoder.{MEMORY_GENE}")
    if column is None or not any(space.slots[column].choices):
        return
    problem = space.model.memory_problem()
    if problem is not None:
        raise source.error(("decoder", MEMORY_GENE), problem)
    for slot in space.slots:
        if slot.gene == "self_attention" and slot.choices != ("softmax",):
            raise source.error(
                ("decoder", MEMORY_GENE),
                f"a memory of earlier segments needs self_attention = ['softmax'] and nothing "
                f"else, because the sums that linear and omni layers carry cannot be cut to the "
                f"last positions; {slot.name} offers {list(slot.choices)}",
            )
