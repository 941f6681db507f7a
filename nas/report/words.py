"""Numbers, networks and features as text for people."""

from __future__ import annotations

import math
import re

from nas.objectives import LISTED_COSTS, OBJECTIVES, QUALITY, QualityMetric, objective
from nas.results.contents import RunContents
from search_spaces.architecture import (
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    EncoderLayer,
    base_kind,
    variant_of,
)
from search_spaces.counts import power_of_ten
from search_spaces.genes import GeneNetwork, Value
from search_spaces.genotypes import Network
from search_spaces.tasks import TASKS, TaskName

# How networks were evaluated while they were compared, see `observed_how`.
INHERITED = "with weights inherited from the supernet"

# Scores that are measured beside the objectives.
LABELS = {
    "valid_bleu": "validation BLEU",
    "valid_loss": "validation loss",
    "valid_recall_nats": "validation loss on recalled tokens",
    "valid_kl": "validation divergence from the checkpoint",
    "valid_similarity": "validation similarity",
    "valid_recall_at_10": "validation recall at 10",
    "valid_accuracy": "validation accuracy",
}
# All that is known of networks, in the order in which it is listed.
METRICS = (QUALITY, *LABELS, *LISTED_COSTS)
# In a run whose predictions are tokens.
TEXT_LABELS = {"valid_accuracy": "validation tokens right"}

# Scores of a network trained from scratch.
SCORES = {
    "accuracy": "accuracy",
    "bleu": "BLEU",
    "perplexity": "perplexity",
    "perplexity_per_word": "perplexity per word",
    "bits_per_character": "bits per character",
    "recall_nats": "loss on recalled tokens",
    "kl": "divergence from the checkpoint",
    "similarity": "similarity",
    "recall_at_10": "recall at 10",
    "checkpoint_recall_at_10": "recall at 10 of the checkpoint",
}

# Those of them that are shares, and told in percent.
SHARES = ("accuracy", "recall_at_10", "checkpoint_recall_at_10")

GENES = {
    "embed_dim": "embedding size",
    "num_layers": "number of layers",
    "memory_length": "memory length",
    "attention": "attention",
    "num_heads": "heads",
    "ffn_dim": "FFN size",
    "self_attention": "self-attention",
    "self_num_heads": "self-attention heads",
    "cross_attention": "cross-attention",
    "cross_num_heads": "cross-attention heads",
    "ende_connect": "encoder layers seen",
    "num_kv_heads": "heads of keys and values",
    "self_num_kv_heads": "heads of keys and values",
}
KINDS = {
    "softmax": "softmax attention (cost grows with the square of the length)",
    "window": "softmax attention over a window (cost grows with the length)",
    "linear": "linear attention (cost grows with the length)",
    "omni": "omnidirectional attention (looks at several lower layers at once)",
    SKIP: "no attention (the layer is its FFN)",
}
"""What each kind of attention is, in the order of the legend."""

_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_LARGEST_EXACT = 10**9  # more digits than that do not fit into a tile
# Keeps a number and its unit on one line.
_GLUE = "\u00a0"


def called(name: str, task: TaskName, quality: QualityMetric) -> str:
    """What a metric is called in a run of a task whose quality is measured so."""
    if name in OBJECTIVES:
        return objective(name, quality).label
    own = {} if TASKS[task].classifies else TEXT_LABELS
    return own.get(name, LABELS.get(name, name))


def metric(run: RunContents, name: str) -> str:
    """What a metric is called in a run."""
    if run.spec.evaluator is not None:
        return run.spec.objective(name).label
    return called(name, run.space.task, run.spec.quality)


def axis_label(run: RunContents, name: str) -> str:
    """What a metric is called in a run, with its unit."""
    if run.spec.evaluator is not None:
        one = run.spec.objective(name)
        return f"{one.label} ({one.symbol})" if one.symbol else one.label
    return with_unit(name, run.space.task, run.spec.quality)


def with_unit(name: str, task: TaskName, quality: QualityMetric) -> str:
    """What a metric is called, with its unit where it has one."""
    symbol = objective(name, quality, task).symbol if name in OBJECTIVES else ""
    symbol = "nats" if name in ("valid_recall_nats", "valid_kl") else symbol
    if name == "valid_loss":
        symbol = TASKS[task].loss_unit
    return f"{called(name, task, quality)} ({symbol})" if symbol else called(name, task, quality)


def sentence(text: str) -> str:
    """Text that begins a sentence."""
    return text[:1].upper() + text[1:]


def value(name: str, number: float | None) -> str:
    """A metric's value as people read it; a dash where there is none."""
    if number is None:
        return "–"
    if name.removeprefix("valid_") in SHARES:
        return percent(number)
    if name in OBJECTIVES and OBJECTIVES[name].whole:
        return whole(number)
    if name == "valid_bleu":
        return f"{number:.2f}"
    if 0 < abs(number) < 0.1:
        return f"{number:.3g}"
    return f"{number:.3f}" if abs(number) < 100 else f"{number:.1f}"


def quantity(name: str, number: float) -> str:
    """A metric's value with the unit that it is measured in, where it has one."""
    return _in_unit(value(name, number), name)


def limit(name: str, number: float) -> str:
    """A limit as it was asked for, not rounded, with its unit."""
    return _in_unit(f"{number:,.15g}", name)


def _in_unit(text: str, name: str) -> str:
    unit = "" if name == QUALITY else OBJECTIVES[name].symbol
    return f"{text}{_GLUE}{unit}" if unit else text


def score(name: str, number: float) -> str:
    """A score of a network trained alone: a share in percent, others with two decimals or four."""
    if name in SHARES:
        return percent(number)
    return f"{number:,.2f}" if abs(number) >= 1 else f"{number:.4f}"


def whole(number: float) -> str:
    """A count: exact up to 9,999, then with three significant digits and k, M, G or T."""
    for size, letter in _SCALES:
        if abs(number) >= size:
            unit = size if letter != "k" else 1e3
            return f"{_three_digits(number / unit)}{_GLUE}{letter}"
    return f"{number:,.0f}"


def _three_digits(number: float) -> str:
    return f"{number:.2f}" if number < 10 else f"{number:.1f}" if number < 100 else f"{number:.0f}"


def count(number: int) -> str:
    """A whole number in full; the astronomical ones as a power of ten."""
    if number < _LARGEST_EXACT:
        return f"{number:,}"
    ten, _, power = power_of_ten(number).partition("^")
    return f"{ten}{_raised(power)}"


def _raised(power: str) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in power)


def percent(share: float) -> str:
    """A share in percent, finer where it is small."""
    if not math.isfinite(share):
        return "–"
    hundred = 100 * share
    text = f"{hundred:.1f}" if abs(hundred) >= 0.1 or hundred == 0 else f"{hundred:.1g}"
    return f"{text}{_GLUE}%"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 0.05:
        return f"under{_GLUE}0.1{_GLUE}s"
    if seconds < 10:
        return f"{seconds:.1f}{_GLUE}s"
    if round(seconds) < 60:
        return f"{seconds:.0f}{_GLUE}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    text = f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
    return text.replace(" ", _GLUE)


def plural(number: int, singular: str, several: str = "") -> str:
    """``1 network``, ``2 networks``."""
    return f"{number:,} {singular if number == 1 else several or singular + 's'}"


# -- networks -----------------------------------------------------------------------------------


def outline(architecture: Network) -> str:
    """A network in a few words: depth and width of its stacks, or all genes of anybody's."""
    if isinstance(architecture, GeneNetwork):
        return architecture.line
    assert isinstance(architecture, Architecture)
    parts = []
    for name in ("encoder", "decoder"):
        stack = getattr(architecture, name)
        if stack is not None:
            named = f"{name}: " if architecture.encoder and architecture.decoder else ""
            layers = plural(len(stack.layers), "layer")
            memory = getattr(stack, "memory_length", 0)
            remembers = f", memory of {plural(memory, 'position')}" if memory else ""
            parts.append(f"{named}{layers}, embedding size {stack.embed_dim}{remembers}")
    return "; ".join(parts)


def layer_lines(architecture: Network) -> list[str]:
    """One line for every layer, first to last; none where the outline tells everything."""
    lines: list[str] = []
    if not isinstance(architecture, Architecture):
        return lines
    for name in ("encoder", "decoder"):
        stack = getattr(architecture, name)
        for number, layer in enumerate(stack.layers if stack else (), start=1):
            named = f"{name} " if architecture.encoder and architecture.decoder else ""
            lines.append(f"{named}{number}: {_layer(layer)}")
    return lines


def _layer(layer: EncoderLayer | DecoderLayer) -> str:
    if isinstance(layer, EncoderLayer):
        own = _own(layer.attention, layer.num_heads, layer.num_kv_heads)
        return f"{own}, FFN {layer.ffn_dim}"
    text = _own(layer.self_attention, layer.self_num_heads, layer.self_num_kv_heads)
    if layer.cross_attention is not None and layer.cross_num_heads is not None:
        text += f"; cross {kind(layer.cross_attention)}, {plural(layer.cross_num_heads, 'head')}"
        text += f", sees {layer.ende_connect}"
    return f"{text}; FFN {layer.ffn_dim}"


def kind(attention: AttentionKind) -> str:
    """A kind of attention with its variant: ``window of 64``, ``linear (gated delta)``."""
    base, variant = base_kind(attention), variant_of(attention)
    if base == SKIP:
        return "no attention"
    if not variant:
        return base
    return f"window of {variant}" if base == "window" else f"{base} ({variant.replace('_', ' ')})"


def _own(attention: AttentionKind, number: int, groups: int | None) -> str:
    if attention == SKIP:
        return kind(attention)
    heads = plural(number, "head") + (f" ({groups} of keys and values)" if groups else "")
    return f"{kind(attention)}, {heads}"


# -- genes and features -------------------------------------------------------------------------

_PLACE = re.compile(r"(?P<stack>encoder|decoder)\.(?:(?P<layer>\d+)\.)?(?P<rest>.+)")
_AGGREGATE = re.compile(r"(?P<how>sum|mean|count|place)\.(?P<rest>.+)")
_SUFFIX = {"sum": ", all layers together", "mean": ", mean over the layers"}


def choice(name: str, value: Value, both_stacks: bool) -> str:
    """A choice of a gene or slot: ``FFN size 8 in layer 3``."""
    place = _PLACE.fullmatch(name)
    if place is None:
        return f"{name} = {value}"
    gene = GENES.get(place["rest"], place["rest"])
    stack = f"{place['stack']} " if both_stacks else ""
    if place["rest"].endswith("attention"):
        text = f"{value} {gene}"
    elif place["rest"] in ("num_layers", "ende_connect"):
        text = f"{gene} = {value}"
    else:
        heads = gene.endswith("heads")
        text = f"{value} {gene[:-1] if value == 1 else gene}" if heads else f"{gene} {value}"
    if place["rest"] in ("embed_dim", "num_layers", "memory_length"):
        return f"{stack}{text}"
    where = "all layers" if place["layer"] is None else f"layer {int(place['layer']) + 1}"
    return f"{text} in {stack + where if place['layer'] else 'all ' + stack + 'layers'}"


def feature(name: str, both_stacks: bool) -> str:
    """A feature of `search_spaces.encoding` in words; an unknown one as it is."""
    place = _PLACE.fullmatch(name)
    if place is None:
        return name
    stack = f"{place['stack']}: " if both_stacks else ""
    if place["layer"] is not None:
        return f"{stack}layer {int(place['layer']) + 1}: {_gene_is(place['rest'])}"
    factors = place["rest"].split("*")
    return stack + " × ".join(_aggregate(factor) for factor in factors)


def _aggregate(text: str) -> str:
    match = _AGGREGATE.fullmatch(text)
    if match is None:
        decoder = text.startswith("decoder.")
        return f"decoder's {_gene_is(text[8:])}" if decoder else _gene_is(text)
    how, rest = match["how"], match["rest"]
    if how == "count":
        return f"layers with {_gene_is(rest)}"
    if how == "place":
        return f"mean place of {_gene_is(rest)}"
    gene, _, kind = rest.partition(".")
    if kind:
        return f"{GENES.get(gene, gene)} in layers with {_gene_is(kind)}"
    return GENES.get(gene, gene) + _SUFFIX[how]


def _gene_is(text: str) -> str:
    gene, _, kind = text.partition("=")
    words = GENES.get(gene, gene)
    return f"{kind} {words}" if kind else words


def observed_how(run: RunContents) -> str:
    """With which weights the search evaluated its networks, to follow what was done with them."""
    if run.spec.evaluator is not None:
        return f"by {run.spec.evaluator}"
    if not run.spec.trains_alone:
        return INHERITED
    budget = run.spec.budget
    alone = f"after {plural(budget.own_updates, 'update')} of training alone"
    return alone if budget.own_seeds == 1 else f"{alone}, as the mean of {budget.own_seeds} seeds"
