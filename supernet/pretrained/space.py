"""The search space around a checkpoint: its own network, and those that it can be made into.

With the largest sizes and its own kinds of attention a network of the space is the checkpoint.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from search_spaces.architecture import (
    SKIP,
    AttentionKind,
    DecoderLayer,
    EncoderLayer,
    base_kind,
    kind_order,
    self_attention,
)
from search_spaces.attention import operator_of, window_of
from search_spaces.errors import DataError, SpaceFileError
from search_spaces.loading import dump_space, parse_space
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.space import Choice, SearchSpace, Slot
from search_spaces.space_form import MAX_SIZE
from search_spaces.toml.source import shown
from supernet.pretrained.checkpoint import CONFIG_FILE, Checkpoint
from supernet.pretrained.families.base import differing
from supernet.pretrained.families.own import OWN_MODEL_TYPE
from supernet.pretrained.folder_files import IMAGE_FILES
from supernet.pretrained.json_files import read_object
from supernet.pretrained.names import layer_kinds

DEPTHS = (1 / 2, 2 / 3, 5 / 6, 1)
FFN_SHARES = (1 / 2, 3 / 4, 1)
HEAD_SHARES = (2 / 3, 1)
WINDOW_SHARES = (1 / 32, 1 / 8)  # of the positions
SMALLEST_WINDOW = 16
LARGEST_WINDOW = 4_096
FFN_STEP = 8
TIMED_TOKENS = 1_024
EMBEDDED_TOKENS = 128  # of a text that is searched for or found: a passage
EMBEDDED_TEXTS = 64  # of a batch: they are short
SEGMENT_LENGTH = 512
LOGITS = 2**26  # numbers of a chunk; what is held of them counts `logit_bytes`
VALID_EXAMPLES = 2_000
VALID_TEXTS = (
    1_000  # each with all others: enough to tell networks apart, and embedding is expensive
)
# Epochs of the network that is kept for each of the supernet: embeddings still gain after fifteen
# hundred updates (experiments/LOG.md, 2026-11-25).
TUNED_EPOCHS, TUNED_EMBEDDING_EPOCHS = 4, 10
# What the checkpoint's states weigh beside its embeddings: .9628 for .9595 after as many updates
# (experiments/LOG.md, 2026-11-26).
STATES_SHARE = 0.75
# Mean and deviation where a checkpoint names none: those of the ViTImageProcessor of transformers.
USUAL_SCALE = 0.5
BYTE = 255  # the brightest of a picture
# Preset → updates of an epoch, epochs of the supernet, networks that are observed.
PRESET_SIZES = {
    "smoke": (5, 1, 32),
    "quick": (50, 4, 120),
    "standard": (100, 20, 400),
    "paper": (500, 40, 2_000),
}

# Lists stand in one line each, to be edited; kinds and numbers hold no line ends.
ARRAY = re.compile(r"\[\n((?: {4}.*,\n)+)\]")

HEADER = """\
# The space around the checkpoint {folder}
# ({family}, {layers} layers of width {width}). The largest of every size, with {kinds},
# is the checkpoint itself. Take away what you do not want and add what you do: every gene has a
# list of choices, and a table such as [{stack}.layer.0] narrows them for one layer.
{groups}"""
GROUPS = "# Heads are fixed: they share keys in groups of one size, or all of them one width.\n"


class LayerGenes(NamedTuple):
    """A layer of either stack under the names that it has in an encoder."""

    attention: AttentionKind
    num_heads: int
    num_kv_heads: int | None
    ffn_dim: int


def space_text(checkpoint: Checkpoint) -> str:
    """The space around a checkpoint as TOML, with what to know of it in front."""
    space = space_around(checkpoint)
    stack = space.stacks[0]
    layers = _layers(checkpoint)
    kinds = sorted({layer.attention for layer in layers}, key=kind_order)
    header = HEADER.format(
        folder=_printable(str(checkpoint.folder)),
        family=checkpoint.family,
        layers=len(layers),
        width=space.slot(f"{stack}.embed_dim").choices[-1],
        kinds=" or ".join(kinds),
        stack=stack,
        groups=GROUPS if _heads_are_fixed(checkpoint) else "",
    )
    table = ARRAY.sub(lambda found: f"[{' '.join(found[1].split())[:-1]}]", dump_space(space))
    text = f"{header.rstrip()}\n\n{table}"
    assert parse_space(text, str(checkpoint.folder)).digest == space.digest
    return text


def space_around(checkpoint: Checkpoint) -> SearchSpace:
    """The space around a checkpoint: kinds and FFN widths of each layer, heads, and depth.

    Layers may become what is cheaper than they are: softmax becomes windows and linear attention, a
    window smaller ones; where layers differ, each may become what any of them may. One without
    attention stays so where it is, and none is dropped then. Kinds have weights of their own,
    because each starts from the checkpoint's and then learns its part.
    Windows of an encoder see its first position besides: texts begin with a token for the whole.
    """
    positions = checkpoint.settings.max_length
    if checkpoint.settings.positions == "rotary":  # which have no table, and go on for ever
        positions = min(positions, MAX_SIZE)
    usual: dict[str, Any] = {
        "window_first": checkpoint.task == "embedding",
        "linear_kernel": "hedgehog" if _reads_both_ways(checkpoint) else "gated_delta",
    }
    read = _read_by_kinds(checkpoint)
    settings = replace(
        checkpoint.settings,
        max_length=positions,
        share_attention_weights=False,
        own_outputs=True,
        **{name: value for name, value in usual.items() if name not in read},
    )
    space = SearchSpace(
        name=_name(checkpoint),
        task=checkpoint.task,
        model=settings,
        slots=tuple(_slots(checkpoint, settings)),
        description=f"Around a checkpoint of the family {checkpoint.family}.",
        data=_data(checkpoint),
        workload=_workload(checkpoint),
        presets=_presets(checkpoint),
    )
    try:  # exports may hold what is no choice of a space
        parse_space(dump_space(space), "the space around it")
    except SpaceFileError as error:
        raise DataError(f"no search begins with {checkpoint.folder}: {error}") from error
    assert space.contains(checkpoint.architecture)
    return space


def _read_by_kinds(checkpoint: Checkpoint) -> list[str]:
    """The settings of a checkpoint that its own kinds of attention read, and not every one does."""
    kinds = layer_kinds(checkpoint.architecture)
    read = {
        "linear_kernel": "linear" in kinds,
        "window": "window" in kinds,
        "window_first": any(base_kind(kind) == "window" for kind in kinds),
    }
    return [name for name, reads in read.items() if reads]


def _data(checkpoint: Checkpoint) -> dict[str, Any]:
    """How pictures are normalised for a checkpoint that reads them, as transformers does it.

    It normalises values up to its `_brightest`, and `Scale` those from 0 to 1.

    Raises:
        DataError: for a damaged file.
    """
    file, shape = checkpoint.folder / IMAGE_FILES[0], checkpoint.settings.input
    if not isinstance(shape, ImageInput):
        return {}
    if checkpoint.family == OWN_MODEL_TYPE:
        own, told = checkpoint.folder / CONFIG_FILE, checkpoint.config
        known = [key for key in ("mean", "std") if key in told]
        return {key: _of_channels(own, told, key, shape.channels) for key in known}
    if not file.is_file():
        return {}
    values = read_object(file)
    mean, std = [0.0] * shape.channels, [1.0] * shape.channels
    if values.get("do_normalize") is not False:
        mean = _of_channels(file, values, "image_mean", shape.channels)
        std = _of_channels(file, values, "image_std", shape.channels)
    brightest = _brightest(file, values)
    scale = {"mean": [one / brightest for one in mean], "std": [one / brightest for one in std]}
    if not all(map(math.isfinite, (*scale["mean"], *scale["std"]))) or min(scale["std"]) <= 0:
        raise DataError(
            f"{file}: pictures cannot be normalised with a rescale_factor of "
            f"{shown(values.get('rescale_factor'))} beside its image_mean and image_std"
        )
    return scale


def _brightest(file: Path, values: Mapping[str, Any]) -> float:
    """The number that the brightest byte becomes before it is normalised: usually 1."""
    if values.get("do_rescale") is False:
        return float(BYTE)
    factor = values.get("rescale_factor")
    if factor is None:
        return 1.0
    if not _is_finite(factor) or not factor > 0:
        raise DataError(
            f"{file}: rescale_factor is {shown(factor)}; right is a number above 0, usually 1/255"
        )
    brightest = BYTE * factor
    return 1.0 if math.isclose(brightest, 1.0) else brightest  # 1/255 ends at some digit


def _of_channels(file: Path, values: Mapping[str, Any], key: str, channels: int) -> list[float]:
    """A number for each channel, where one may stand for all of them, or none for the usual one."""
    value = USUAL_SCALE if values.get(key) is None else values[key]
    numbers = value if isinstance(value, list) else [value] * channels
    if len(numbers) != channels or not all(map(_is_finite, numbers)):
        raise DataError(
            f"{file}: {key} is {shown(value)}; right is a number for each channel of a picture"
        )
    if key.endswith("std") and min(numbers) <= 0:
        raise DataError(f"{file}: {key} is {shown(value)}; right are numbers above 0")
    return numbers


def _is_finite(value: object) -> bool:
    """Whether a value of JSON is a number that a float holds."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and abs(value) <= sys.float_info.max  # type: ignore[arg-type]


def space_problem(space: SearchSpace, checkpoint: Checkpoint) -> str | None:
    """Why networks of a space cannot inherit from a checkpoint, as half a sentence.

    Returns:
        None where they can: the space is of its task, has its settings but for those that other
        kinds of attention read, and holds its network.
    """
    if space.task != checkpoint.task:
        return f"the space is for {space.task}, the checkpoint for {checkpoint.task}"
    positions = checkpoint.settings.max_length
    if space.model.max_length > positions:
        return f"the space's max_length is above the checkpoint's {positions}"
    known = replace(checkpoint.settings, max_length=space.model.max_length)
    names = differing(space.model, known)
    names += [n for n in _read_by_kinds(checkpoint) if getattr(space.model, n) != getattr(known, n)]
    if names:
        return f"the space has other settings: {', '.join(names)}"
    if not space.contains(checkpoint.architecture):
        return "the checkpoint's own network is not among them"
    sizes = [slot for slot in space.slots if not slot.gene.endswith("attention")]
    (row,) = space.encode([checkpoint.architecture])
    larger = [s for s in sizes if max(s.choices) != s.choices[row[space.slot_index[s.name]]]]
    if larger:
        return f"the space has more of {larger[0].name} than the checkpoint"
    kinds, columns = layer_kinds(checkpoint.architecture), space.kind_columns[space.stacks[0]]
    for slot in (space.slots[c] for c, kind in zip(columns, kinds, strict=True) if kind == SKIP):
        if slot.choices != (SKIP,):
            return f"{slot.name} is {SKIP} in the checkpoint, which has nothing for other kinds"
    widths = [slot.name for slot in sizes if slot.gene == "embed_dim" and len(slot.choices) > 1]
    if widths:
        return f"{widths[0]} has smaller choices; the checkpoint's dimensions stay together"
    return None


def _slots(checkpoint: Checkpoint, settings: ModelSettings) -> list[Slot]:
    """The genes in the order of a space of these settings, each with its choices."""
    encoder = _reads_both_ways(checkpoint)
    stack, prefix = ("encoder", "") if encoder else ("decoder", "self_")
    layers = _layers(checkpoint)
    found = checkpoint.architecture.encoder or checkpoint.architecture.decoder
    assert found is not None
    own = {layer.attention for layer in layers}
    depths = (len(layers),) if SKIP in own else shares(len(layers), DEPTHS)
    slots = [
        Slot(stack, "embed_dim", None, (found.embed_dim,)),
        Slot(stack, "num_layers", None, depths),
    ]
    # The same for all layers that attend: with fewer of them any may be the first.
    around = {one for kind in own for one in kinds_around(kind, settings, encoder)}
    known = {_meaning(kind, settings) for kind in own}
    new = {kind for kind in around - own if _meaning(kind, settings) not in known}
    kinds = sorted(own | new, key=kind_order)
    fixed, grouped = _heads_are_fixed(checkpoint), any(layer.num_kv_heads for layer in layers)
    for number, layer in enumerate(layers):
        heads = layer.num_heads
        genes: dict[str, Sequence[Choice]] = {
            f"{prefix}attention": (SKIP,) if layer.attention == SKIP else kinds,
            f"{prefix}num_heads": (heads,) if fixed else shares(heads, HEAD_SHARES),
            "ffn_dim": shares(layer.ffn_dim, FFN_SHARES, FFN_STEP),
        }
        if grouped:
            genes[f"{prefix}num_kv_heads"] = (layer.num_kv_heads or heads,)
        slots += [Slot(stack, gene, number, tuple(choices)) for gene, choices in genes.items()]
    return slots


def _heads_are_fixed(checkpoint: Checkpoint) -> bool:
    """Whether heads share keys in groups, or would be wider if there were fewer of them."""
    grouped = any(layer.num_kv_heads for layer in _layers(checkpoint))
    return grouped or checkpoint.settings.qkv_dim is not None


def _meaning(kind: AttentionKind, settings: ModelSettings) -> tuple[str, int]:
    """The operator of a kind, and what it sees, for two kinds may be one by these settings."""
    return operator_of(settings, kind).name, window_of(settings, kind)


def kinds_around(
    kind: AttentionKind, settings: ModelSettings, encoder: bool
) -> tuple[AttentionKind, ...]:
    """What a layer may be: what it is, smaller windows, and linear attention.

    Patches of an image have no order in which a window of them would be a neighbourhood.
    """
    if kind == SKIP:
        return (kind,)
    if isinstance(settings.input, ImageInput):
        return (kind, "linear")
    most = (window_of(settings, kind) or LARGEST_WINDOW + 1) - 1
    sides = 2 if encoder else 1  # a window of an encoder lies on both sides
    wanted = (_power_of_two(settings.max_length * share / sides) for share in WINDOW_SHARES)
    sizes = {min(max(SMALLEST_WINDOW, size), LARGEST_WINDOW) for size in wanted}
    windows = {f"window:{n}" for n in sizes if n <= most and n < settings.max_length}
    return tuple(sorted({kind, "linear", *windows}, key=kind_order))


def shares(whole: int, parts: Sequence[float], step: int = 1) -> tuple[int, ...]:
    """Parts of a number, ascending, each but the whole rounded to a multiple of `step`."""
    rounded = (max(1, round(whole * part / step)) * step for part in parts[:-1])
    return tuple(sorted({whole, *(one for one in rounded if one < whole)}))


def _power_of_two(number: float) -> int:
    return 1 << max(0, int(number).bit_length() - 1)


def _layers(checkpoint: Checkpoint) -> list[LayerGenes]:
    stack = checkpoint.architecture.encoder or checkpoint.architecture.decoder
    assert stack is not None
    return [_genes(layer) for layer in stack.layers]


def _genes(layer: EncoderLayer | DecoderLayer) -> LayerGenes:
    return LayerGenes(*self_attention(layer), layer.ffn_dim)


def _reads_both_ways(checkpoint: Checkpoint) -> bool:
    return checkpoint.architecture.encoder is not None


def _presets(checkpoint: Checkpoint) -> dict[str, Any]:
    """Budgets of a search that begins with weights: short trainings at small rates.

    The checkpoint is a frozen teacher of all networks, see `TrainingSettings.distillation`, or has
    made the targets; those that embed are fine-tuned to its states besides.
    """
    length, embeds = checkpoint.settings.max_length, checkpoint.task == "embedding"
    shared = {
        "segment_length": min(SEGMENT_LENGTH, length),
        "max_tokens": 8 * min(SEGMENT_LENGTH, length),
        "batch_size": EMBEDDED_TEXTS if embeds else 32,
        "distillation": 0.0 if embeds else 0.9,
        "label_smoothing": 0.0,
        "weight_decay": 0.01,
        "dropout": 0.0,
        "check_every": 1,
    }
    shape = checkpoint.settings.input
    if checkpoint.task == "language_modelling" and isinstance(shape, TokenInput):
        chunk = max(64, LOGITS // shape.vocab_size)
        shared |= {"loss_chunk": chunk} if chunk < shared["max_tokens"] else {}
    # The largest keeps what it knows only where it trains along (experiments/LOG.md, 2026-11-23).
    # In the place of the smallest, which is far from what is picked, encoders of texts train
    # another random one (2026-11-28; what it does to language models is not measured).
    supernet = {
        "sampling": "largest" if embeds else "sandwich",
        "num_random": 2 if embeds else 1,
        "learning_rate": 1e-4,
        "num_probes": 8,
    }
    presets = {}
    for name, (updates, epochs, observations) in PRESET_SIZES.items():
        presets[name] = {
            "supernet": {**shared, **supernet, "epochs": epochs, "epoch_updates": updates},
            "retrain": {
                **shared,
                **({"distillation": STATES_SHARE} if embeds else {}),
                "learning_rate": 3e-4,
                "epochs": (TUNED_EMBEDDING_EPOCHS if embeds else TUNED_EPOCHS) * epochs,
                "epoch_updates": updates,
            },
            "observations": observations,
            "valid_examples": VALID_TEXTS if embeds else VALID_EXAMPLES,
        }
    return presets


def _workload(checkpoint: Checkpoint) -> dict[str, Any]:
    settings = checkpoint.settings
    if isinstance(settings.input, ImageInput):
        return {"batch": 1, "source": settings.input.num_tokens}
    usual = EMBEDDED_TOKENS if checkpoint.task == "embedding" else TIMED_TOKENS
    return {"batch": 1, "source": min(usual, settings.max_length)}


def _name(checkpoint: Checkpoint) -> str:
    """The folder's name, as far as a space's may be that."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", checkpoint.folder.resolve().name).lstrip("._-")
    return plain[:64] or checkpoint.family


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)
