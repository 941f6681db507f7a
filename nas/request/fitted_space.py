"""A search space made for prepared data: sizes that the data can teach in the time there is.

What a space needs beside its data is how fast this machine trains its networks (`Pace`), which
`nas.run.pace` measures. From both follow the size of the networks, the lengths of the trainings and
how many networks are looked at. The result is the text of a space file that says of each line why
it is so, to be searched as it is or edited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

from nas.request.halving import CANDIDATES, trainings
from nas.request.spec import MOST_HOURS
from search_spaces.errors import UsageError
from search_spaces.loading import parse_space
from search_spaces.space import SearchSpace
from search_spaces.wording import mark
from supernet.data.manifest import Manifest

Size = Literal["tiny", "small", "medium", "large"]
SIZE_NAMES: tuple[Size, ...] = get_args(Size)

# Shares of the time that timing networks leaves: for the supernet, for looking at networks, and for
# all that is trained from scratch. The rest is for verifying and for the report.
SUPERNET, OBSERVE, RETRAIN = 0.30, 0.09, 0.53
# Trainings of networks of usual cost beside that of the largest: those of the candidates, and that
# of the plain network of the winner's cost.
TRAININGS = trainings(CANDIDATES) + 1
MOST_TIMING_S = 45.0  # of networks, where nothing disturbs it
# Passes over the training split after which small data are known by heart.
MOST_PASSES = {"images": 150, "texts": 60, "pairs": 60, "stream": 30}
# Fewer updates of a supernet than this order networks badly (experiments/LOG.md, rank_fidelity).
LEAST_UPDATES = 1_000
CHECKS, PROBES = 10, 4  # of the validation split in a training, and networks in each
MOST_OBSERVED, LEAST_OBSERVED = 160, 40
LEAST_COMPARED = 200
MOST_POSITIONS = 4_096
LEAST_POSITIONS = 64  # for texts that a network is asked about, where the data's are shorter
IMAGE_TOKENS, LARGE_IMAGE_TOKENS, LARGE_IMAGE = 64, 196, 96  # about; pixels of a large one
MOST_APART = 4  # times as many tokens as those, or a share of them, may a picture have
MOST_TOKENS = 32_768  # of long texts in an update
SEGMENT = 256  # tokens that a language model reads at once
LONG = 256  # texts from which windows are worth a try


@dataclass(frozen=True)
class Widths:
    """Choices of the genes of a size.

    Attributes:
        embed_dim: embedding sizes.
        num_layers: depths.
        head_dim: width of a head.
        num_heads: numbers of heads.
        ffn_dim: widths of feed-forward networks.
        learning_rate: peak rate.
    """

    embed_dim: tuple[int, ...]
    num_layers: tuple[int, ...]
    head_dim: int
    num_heads: tuple[int, ...]
    ffn_dim: tuple[int, ...]
    learning_rate: float


SIZES: Mapping[Size, Widths] = {
    "tiny": Widths((32, 48, 64), (1, 2, 3), 16, (2, 4), (64, 96, 128), 3e-3),
    "small": Widths((64, 96, 128), (2, 3, 4), 32, (2, 4), (128, 256, 384), 2e-3),
    "medium": Widths((192, 256, 384), (3, 4, 6), 64, (4, 6), (384, 768, 1_152), 1e-3),
    "large": Widths((384, 512, 768), (6, 8, 12), 64, (8, 12), (1_024, 2_048, 3_072), 5e-4),
}
# Content of the data → examples, of streams and pairs tokens, from which each size can be taught.
LEAST_DATA: Mapping[str, tuple[float, float, float]] = {
    "images": (4e3, 1e5, 2e6),
    "texts": (2e3, 1e5, 2e6),
    "pairs": (2e5, 2e7, 5e8),
    "stream": (5e5, 5e7, 2e9),
}


@dataclass(frozen=True)
class Pace:
    """How fast a machine works on the networks of a space.

    Attributes:
        update_s: an update of the supernet, mean of drawn networks, in seconds.
        largest_update_s: an update of the largest network alone.
        example_s: evaluating one validation example, or line, by a drawn network.
        pass_updates: updates of a pass over the training split.
        threads: of the CPU, with which it is fastest.
    """

    update_s: float
    largest_update_s: float
    example_s: float
    pass_updates: int
    threads: int


@dataclass(frozen=True)
class Amounts:
    """How much a search does.

    Attributes:
        updates: of the supernet.
        own_updates: of the network that is trained from scratch.
        pass_updates: see `Pace`.
        observations: networks whose quality is measured.
        valid_examples: that they are compared on; 0 for all.
        threads: see `Pace`.
    """

    updates: int
    own_updates: int
    pass_updates: int
    observations: int
    valid_examples: int
    threads: int


TRIAL = Amounts(CHECKS, CHECKS, 1, LEAST_OBSERVED, 0, 1)  # of a space whose pace is not known


@dataclass(frozen=True)
class Fitted:
    """A space made for data.

    Attributes:
        size: of its networks.
        text: the space file.
        space: the same.
    """

    size: Size
    text: str
    space: SearchSpace


def fit_space(
    manifest: Manifest,
    name: str,
    hours: float,
    measure: Callable[[SearchSpace], Pace],
    size: Size | None = None,
) -> Fitted:
    """The space for prepared data that a search of so many hours makes most of.

    Args:
        manifest: of the data.
        name: of their folder, after which the space is called.
        hours: for the whole search; more than 0.
        measure: how fast this machine works on a space, with batches of its preset ``quick``.
        size: of the networks; None for the largest that the data can teach in that time.

    Raises:
        UsageError: for hours out of range, or data that no space is made for.
    """
    if not 0 < hours <= MOST_HOURS:
        raise UsageError(
            f"{mark('hours')} {hours:g} is not a time: give more than 0, at most {MOST_HOURS:,.0f}"
        )
    if manifest.content not in LEAST_DATA:
        raise UsageError(
            f"a space can be made for images, texts, pairs and streams; these are "
            f"{manifest.content}, which a search begins with a checkpoint for ({mark('start')})"
        )
    if manifest.image_shape is not None and manifest.image_shape[0] != manifest.image_shape[1]:
        height, width, _ = manifest.image_shape
        raise UsageError(
            f"these pictures have {width} x {height} pixels, and networks read square ones: "
            f"prepare them with {mark('image_size')}"
        )
    sizes = [size] if size else SIZE_NAMES[: SIZE_NAMES.index(largest_size(manifest)) + 1]
    chosen: tuple[Size, Amounts] | None = None
    for one in sizes:
        space = parse_space(space_text(manifest, name, one, hours, TRIAL), name)
        amounts = amounts_for(manifest, measure(space), hours)
        if chosen is not None and amounts.updates < min(LEAST_UPDATES, chosen[1].updates):
            break  # the next smaller one learns more in that time
        chosen = one, amounts
    assert chosen is not None
    text = space_text(manifest, name, chosen[0], hours, chosen[1])
    return Fitted(chosen[0], text, parse_space(text, name))


def largest_size(manifest: Manifest) -> Size:
    """The largest size that the training split can teach."""
    train = manifest.splits["train"]
    amount = train.examples
    if manifest.content in ("pairs", "stream"):
        amount = sum(count for key, count in train.counts.items() if key.endswith("tokens"))
    reached = sum(amount >= least for least in LEAST_DATA[manifest.content])
    return SIZE_NAMES[reached]


def amounts_for(manifest: Manifest, pace: Pace, hours: float) -> Amounts:
    """How much fits into a time at a pace, with the trainings of the baselines."""
    seconds = hours * 3600 - min(MOST_TIMING_S, hours * 3600 / 5)
    most = MOST_PASSES[manifest.content] * pace.pass_updates
    # Networks are compared on no more examples than allow for a hundred of them.
    examples = manifest.splits["valid"].examples
    fits = int(OBSERVE * seconds / (100 * pace.example_s))
    compared = min(examples, max(LEAST_COMPARED, _round(fits)))
    observations = int(OBSERVE * seconds / (compared * pace.example_s))
    checks_s = CHECKS * compared * pace.example_s  # in a training
    usual_s = min(pace.update_s, pace.largest_update_s)

    def updates(share: float, checked: float, update_s: float) -> int:
        # At least half of a time is for updates.
        spent = share * seconds - min(checked * checks_s, share * seconds / 2)
        return _round(min(most, spent / update_s))

    return Amounts(
        updates=updates(SUPERNET, PROBES, pace.update_s),
        own_updates=updates(RETRAIN, 1 + TRAININGS, pace.largest_update_s + TRAININGS * usual_s),
        pass_updates=pace.pass_updates,
        observations=max(LEAST_OBSERVED, min(MOST_OBSERVED, observations)),
        valid_examples=0 if compared == examples else compared,
        threads=pace.threads,
    )


def _round(number: float) -> int:
    """Two digits of a count, at least 1: paces differ by more from run to run."""
    if number < 10:
        return max(1, int(number))
    step = 10 ** (len(str(int(number))) - 2)
    return int(int(number) // step * step)


# -- the text ---------------------------------------------------------------------------------


def space_text(manifest: Manifest, name: str, size: Size, hours: float, amounts: Amounts) -> str:
    """A space for data as TOML, each line with its reason.

    Args:
        manifest: of the data.
        name: of their folder.
        size: of the networks.
        hours: that the amounts are for.
        amounts: how much is done in those hours.
    """
    lines = [*_head(manifest, name, size, hours), *_model(manifest, size), *_stacks(manifest, size)]
    lines += [*_workload(manifest), *_presets(manifest, size, amounts)]
    return "\n".join(lines) + "\n"


def _line(setting: str, why: str) -> str:
    return f"{setting:<44} # {why}"


def _head(manifest: Manifest, name: str, size: Size, hours: float) -> Iterator[str]:
    train = manifest.splits["train"]
    task = manifest.task.replace("_", " ")
    yield f"# Made by nas space new for {_plain(name)}: {task}, {train.examples:,} examples, for"
    yield f"# about {hours:g} h on the machine that made it. Edit it: a gene is a list of choices."
    yield ""
    yield "[space]"
    yield _line(f'name = "{_slug(name)}"', "after the folder of the data")
    yield _line(f'task = "{manifest.task}"', "what the data were prepared for")
    yield _line(f'description = "Made for {_plain(name)}, size {size}."', "for you")
    yield ""


def _model(manifest: Manifest, size: Size) -> Iterator[str]:
    long = _positions(manifest)
    yield "[model]"
    if manifest.content == "stream":
        yield _line('style = "llama"', "RMS norms, rotary positions, gated FFNs")
    texts = manifest.content == "texts"
    why = "where longer texts are cut" if texts else "the longest input in tokens"
    yield _line(f"max_length = {long}", why)
    if manifest.task == "classification":
        yield _line(f"num_classes = {len(manifest.label_names)}", "labels in the data")
    yield _line(f"head_dim = {SIZES[size].head_dim}", "width of a head")
    if manifest.content == "stream":
        yield _line("tied_output = true", "one table for reading and writing tokens")
        yield _line("scale_embeddings = true", "which a table that also writes needs")
        yield _line('linear_kernel = "gated_delta"', "the linear attention that recalls best")
        yield _line("share_attention_weights = false", "kinds of attention learn apart")
    else:
        yield _line('norm = "pre"', "trains without care")
        learned = manifest.content == "images"
        kind = "learned" if learned else "sinusoidal"
        yield _line(f'positions = "{kind}"', "a table" if learned else "no table to learn")
        yield _line('linear_kernel = "cosformer"', "near tokens count more")
        yield _line('omni_kernel = "performer"', "looks at all layers below")
        yield _line("omni_span = 3", "at most so many of them")
    if manifest.task == "classification":
        yield _line('pooling = "mean"', "the classifier reads the mean of all tokens")
    yield ""
    yield "[model.input]"
    if manifest.image_shape is not None:
        side, _, channels = manifest.image_shape
        read = network_side(side)
        why = "as prepared" if read == side else f"to which those of {side} are enlarged"
        yield _line('kind = "image"', "square pictures")
        yield _line(f"image_size = {read}", f"pixels, {why}")
        yield _line(f"patch_size = {patch_size(read)}", f"so that a picture has {long} tokens")
        yield _line(f"channels = {channels}", "as prepared")
    else:
        assert manifest.tokenizer is not None
        own = manifest.tokenizer
        yield _line('kind = "tokens"', "text")
        yield _line(f"vocab_size = {own.vocab_size}", "of the data's own tokenizer")
        if manifest.content == "pairs" and own.joint:
            yield _line("share_embeddings = true", "both sides have one vocabulary")
        elif manifest.content == "pairs":
            yield _line(f"target_vocab_size = {own.target_vocab_size}", "of the other side")
    yield ""


def _stacks(manifest: Manifest, size: Size) -> Iterator[str]:
    widths = SIZES[size]
    kinds = _kinds(manifest)
    names = {"pairs": ("encoder", "decoder"), "stream": ("decoder",)}.get(
        manifest.content, ("encoder",)
    )
    for stack in names:
        own = "self_" if stack == "decoder" else ""
        yield f"[{stack}]"
        yield _line(f"embed_dim = {list(widths.embed_dim)}", f"sizes of {size} networks")
        yield _line(f"num_layers = {list(widths.num_layers)}", "depths")
        yield _line(f"{own}attention = {_listed(kinds)}", "of each layer")
        yield _line(f"{own}num_heads = {list(widths.num_heads)}", "of each layer")
        yield _line(f"ffn_dim = {list(widths.ffn_dim)}", "of each layer")
        if len(names) == 2 and stack == "decoder":
            yield _line('cross_attention = ["softmax"]', "linear kinds cost quality there")
            yield _line(f"cross_num_heads = {list(widths.num_heads)}", "of each layer")
            yield _line("ende_connect = [1]", "decoders read the encoder's last layer")
        yield ""


def _workload(manifest: Manifest) -> Iterator[str]:
    yield "[workload]"
    yield _line("batch = 1", "what is timed: one input at a time")
    train = manifest.splits["train"]
    if manifest.content == "images":
        yield _line(f"source = {_positions(manifest)}", "tokens of a picture")
    elif manifest.content == "pairs":
        for side in ("source", "target"):
            mean = max(1, round(train.counts[f"{side}_tokens"] / train.examples))
            yield _line(f"{side} = {mean}", "tokens of a usual line")
        yield _line("beam = 4", "hypotheses side by side")
    elif manifest.content == "stream":
        yield _line(f"source = {SEGMENT}", "tokens that are read at once")
    else:
        mean = max(1, round(train.counts["tokens"] / train.examples))
        yield _line(f"source = {min(mean, _positions(manifest))}", "tokens of a usual text")
    yield ""


def _presets(manifest: Manifest, size: Size, amounts: Amounts) -> Iterator[str]:
    yield "# A few minutes, to see that all works."
    few = min(64, amounts.valid_examples or 64)
    smoke = replace(amounts, updates=40, own_updates=40, observations=16, valid_examples=few)
    yield from _preset("smoke", manifest, size, smoke, 1.0)
    yield "# What fits into the time above."
    yield from _preset("quick", manifest, size, amounts, 1.0)
    yield "# Four times that, as far as the data have something to teach."
    yield from _preset("standard", manifest, size, amounts, 4.0)


def _preset(
    name: str, manifest: Manifest, size: Size, amounts: Amounts, times: float
) -> Iterator[str]:
    most = MOST_PASSES[manifest.content] * amounts.pass_updates
    yield f"[presets.{name}]"
    yield _line(f"threads = {amounts.threads}", "of the CPU, with which training was fastest")
    yield _line(f"observations = {amounts.observations}", "networks whose quality is measured")
    if amounts.valid_examples:
        yield _line(f"valid_examples = {amounts.valid_examples}", "that they are compared on")
    if name == "smoke":
        yield _line("latency_samples = 8", "networks that are timed at first")
        yield _line("timing_rounds = 3", "how often")
        yield _line("verified = 4", "networks measured at the end")
    for part, updates in (("supernet", amounts.updates), ("retrain", amounts.own_updates)):
        yield ""
        yield f"[presets.{name}.{part}]"
        yield from _length(min(most, round(times * updates)), amounts.pass_updates)
        yield from _batches(manifest)
        yield _line(f"learning_rate = {SIZES[size].learning_rate:g}", f"for {size} networks")
        if part == "supernet":
            yield _line('sampling = "uniform"', "each update trains one drawn network")
            yield _line("num_random = 1", "more updates teach more than more networks in each")
            yield _line(f"num_probes = {PROBES}", "networks that the training is followed on")
        elif manifest.content != "stream":
            yield _line("dropout = 0.1", "against learning by heart")
        if manifest.content == "stream":
            yield _line("label_smoothing = 0.0", "what follows is told in nats")
        if manifest.content == "images" and (changes := augmentation(manifest)):
            yield _line(f'augmentation = "{changes}"', "drop flip where left and right differ")
    yield ""


def _length(updates: int, pass_updates: int) -> Iterator[str]:
    """So many updates, as passes or, where a pass is a large part of them, as pieces of it."""
    if updates >= CHECKS * pass_updates:
        epochs = round(updates / pass_updates)
        yield _line(f"epochs = {epochs}", f"passes over the data, {pass_updates} updates each")
        yield _line(f"check_every = {max(1, epochs // CHECKS)}", "passes between looks at the loss")
        return
    piece = max(1, math.ceil(updates / CHECKS))
    epochs = math.ceil(updates / piece)
    yield _line(f"epochs = {epochs}", "pieces of the training")
    yield _line(f"epoch_updates = {piece}", f"updates of a piece; a pass has {pass_updates}")
    yield _line("check_every = 1", "pieces between looks at the loss")


def _batches(manifest: Manifest) -> Iterator[str]:
    if manifest.task == "classification":
        size = 32 if manifest.splits["train"].examples < 5_000 else 64
        size = max(4, min(size, MOST_TOKENS // _positions(manifest)))
        yield _line(f"batch_size = {size}", "examples of an update")
        return
    most = 4096 if manifest.content == "stream" else max(2048, _positions(manifest))
    yield _line(f"max_tokens = {most}", "of an update")
    if manifest.content == "stream":
        yield _line(f"segment_length = {SEGMENT}", "tokens that are read at once")


def augmentation(manifest: Manifest) -> str:
    """How training pictures are changed: less where there are few pixels, no flips of grey ones."""
    assert manifest.image_shape is not None
    side, _, channels = manifest.image_shape
    if side < 16:
        return "shift=1"
    crop = f"crop={side // 8}"
    return f"{crop},flip" if channels == 3 else crop


def patch_size(side: int) -> int:
    """The patch that cuts a picture into about 64 tokens, a large one into about 196."""
    wanted = _wanted_tokens(side)
    patches = [patch for patch in range(1, side + 1) if side % patch == 0 and side // patch > 1]
    if not patches:
        return 1
    return min(patches, key=lambda patch: abs(math.log((side / patch) ** 2 / wanted)))


def network_side(side: int) -> int:
    """The side of the pictures that networks read, to which smaller ones are enlarged.

    It is that of the data, unless they can be cut into far too many patches only, or too few, as
    where it is a prime or twice one: then it is the next larger one that is cut well.
    """
    while not _is_cut_well(side):
        side += 1
    return side


def _is_cut_well(side: int) -> bool:
    patch, wanted = patch_size(side), _wanted_tokens(side)
    tokens = (side // patch) ** 2
    few = patch > 1 and tokens * MOST_APART < wanted
    return tokens <= wanted * MOST_APART and not few


def _wanted_tokens(side: int) -> int:
    return LARGE_IMAGE_TOKENS if side > LARGE_IMAGE else IMAGE_TOKENS


def _positions(manifest: Manifest) -> int:
    if manifest.image_shape is not None:
        side = network_side(manifest.image_shape[0])
        return int((side // patch_size(side)) ** 2)
    if manifest.content == "stream":
        return MOST_POSITIONS // 2
    longest = max(max(split.longest.values()) for split in manifest.splits.values())
    if manifest.content == "pairs":
        return max(longest, MOST_POSITIONS // 16)
    cut_at = manifest.settings.get("max_length")  # of longer texts nothing is read anywhere
    room = min(LEAST_POSITIONS, cut_at) if isinstance(cut_at, int) else LEAST_POSITIONS
    return max(longest, room)


def _kinds(manifest: Manifest) -> tuple[str, ...]:
    if manifest.content == "stream":
        return ("softmax", f"window:{SEGMENT // 4}", "linear")
    if manifest.content == "texts" and _positions(manifest) >= LONG:
        return ("softmax", "window:32", "linear")
    return ("softmax", "linear", "omni")


def _listed(kinds: tuple[str, ...]) -> str:
    return "[" + ", ".join(f'"{kind}"' for kind in kinds) + "]"


def _slug(name: str) -> str:
    """A name for a space: letters, digits, dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "data"


def _plain(name: str) -> str:
    """A folder's name that neither ends a comment nor a string of TOML."""
    return re.sub(r"[^\w .-]", "?", name)[:60]
