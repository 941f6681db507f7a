"""Every attention operator by itself: whole sequences and single tokens, up to 16,384 positions.

All are causal, with four heads of 64 and one sequence, and take turns at each length. Where
transformers has the same operator in plain torch, it is timed beside ours: softmax, eager and by
torch's fused kernel, and the gated delta rule of Qwen3-Next, which is compared without the
convolutions and gates around it. What needs N × N numbers is left out where they would fill memory.

A linear operator overtakes fused softmax where the lines of the two cross. For that the two alone
take turns, at up to nine lengths around the one at which they should. It is compared with the
length at which both need the same multiply-adds by the formulas of `search_spaces.attention`, of
which causal softmax needs one half (it skips what is in the future); and with that at which both
compute as many, for the products within chunks, which no formula of the operator has, are made too.

Shapes: B batch, H heads, N positions, D width of a head, E width of the layer's input.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from experiments.harness import table_of
from search_spaces.attention import AttentionSizes, operator_of, window_of
from search_spaces.heap import steady_heap
from search_spaces.settings import ModelSettings, TokenInput
from supernet.attention import AttentionKernel, build_kernel, causal_linear, gated_chunks
from supernet.attention.gated_chunks import gated_sums

HEADS, HEAD_DIM, EMBED_DIM = 4, 64, 256
WIDTH = HEADS * HEAD_DIM
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
QUADRATIC_LENGTHS = 4096
"""Longest sequence whose weights are all kept at once."""
ROUNDS = 7
NEAR = (0.75, 0.875, 1.0, 1.125, 1.25, 1.375, 1.5, 1.75, 2.0)
"""Lengths that lines are compared at, as shares of where as many multiply-adds are computed."""
PASSES = 5
TOKEN_CALLS = 20
SETTINGS = ModelSettings(
    input=TokenInput(vocab_size=16), max_length=max(LENGTHS) + 1, head_dim=HEAD_DIM
)
KINDS = (
    "softmax",
    "window:64",
    "window:512",
    "linear:cosformer",
    "linear:norm",
    "linear:elu",
    "linear:hedgehog",
    "linear:decay",
    "linear:decay_channel",
    "linear:gated_delta",
)
RULE = "gated delta rule alone"

Call = Callable[[], object]


@dataclass(frozen=True)
class OperatorTime:
    """What one operator takes at one length.

    Attributes:
        operator: the kind with its variant, or whose operator it is.
        length: positions of the sequence, or before the token.
        forward_ms: median of a whole sequence; None where it was left out.
        token_ms: median of one token behind so many; None likewise.
    """

    operator: str
    length: int
    forward_ms: float | None
    token_ms: float | None


@dataclass(frozen=True)
class Crossing:
    """Where a linear operator overtakes fused softmax.

    Attributes:
        operator: the kind with its variant.
        by_operations: length from which it needs fewer multiply-adds by its formula.
        computed: the same with those that are computed, chunks included.
        measured: length from which it is faster; None where lines do not cross near the second.
    """

    operator: str
    by_operations: int
    computed: int
    measured: float | None


def operator_times(lengths: Sequence[int] = LENGTHS) -> list[OperatorTime]:
    """Medians of all operators, length by length."""
    kernels = {kind: _kernel(kind).eval() for kind in KINDS}
    found = []
    with torch.inference_mode(), steady_heap():
        for length in lengths:
            forward, token = _calls(kernels, length)
            forward_ms, token_ms = _in_turns(forward, 1), _in_turns(token, TOKEN_CALLS)
            found += [
                OperatorTime(name, length, forward_ms.get(name), token_ms.get(name))
                for name in {**forward, **token}
            ]
    return found


def crossings() -> list[Crossing]:
    """Of every linear operator: medians of several passes over all of them.

    A machine that others use is slow for seconds, which would be all of one pass.
    """
    computed = {kind: computed_crossing(kind) for kind in KINDS if kind.startswith("linear")}
    with torch.inference_mode(), steady_heap():
        passes = [
            [_crossed(kind, near(computed[kind])) for kind in computed] for _ in range(PASSES)
        ]
    found = []
    for (kind, length), row in zip(computed.items(), zip(*passes, strict=True), strict=True):
        lengths, measured = near(length), statistics.median(row)
        inside = lengths[0] <= measured <= lengths[-1]
        found.append(
            Crossing(kind, operations_crossing(kind), length, measured if inside else None)
        )
    return found


def near(length: int) -> list[int]:
    """Lengths about one, ascending, of whole chunks for every operator."""
    whole = math.lcm(gated_chunks.CHUNK_STATES, causal_linear.CHUNK_STATES)
    return sorted({whole * max(1, round(length * share / whole)) for share in NEAR})


def _crossed(kind: str, lengths: Sequence[int]) -> float:
    kernels = {name: _kernel(name).eval() for name in ("softmax", kind)}
    ratios = []
    for length in lengths:
        forward, _ = _kernel_calls(kernels, _drawn(length), length)
        took = _in_turns(forward, 1)
        ratios.append(took[kind] / took["softmax"])
    return crossed(lengths, ratios)


def crossed(lengths: Sequence[int], ratios: Sequence[float]) -> float:
    """The length at which a ratio of times is 1.

    Args:
        lengths: ascending.
        ratios: one for each; taken as a power of the length, by least squares.

    Returns:
        The length, wherever it is; where the ratio does not fall 0 if it is less than 1 all along,
        and else infinity.
    """
    slope, at_one = np.polyfit(np.log(lengths), np.log(ratios), 1)
    if slope >= 0:
        return 0.0 if max(ratios) < 1 else math.inf
    return math.exp(-at_one / slope)


def operations_crossing(kind: str) -> int:
    """Length from which an operator needs fewer multiply-adds than causal softmax."""
    length = 1
    while _operations(kind, length) > _operations("softmax", length) / 2:
        length += 1
    return length


def computed_crossing(kind: str) -> int:
    """Length from which an operator computes fewer multiply-adds than causal softmax."""
    length = 256  # the cost of a position is the same at all that are whole chunks
    q, k, v = (torch.ones(1, HEADS, length, HEAD_DIM) for _ in range(3))
    kernel = _kernel(kind)
    call = partial(kernel.causal, q, k, v)
    if kernel.reads_input:
        call = partial(call, x_BND=torch.ones(1, length, EMBED_DIM))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        call()
    # Causal softmax: two products of D with N / 2 keys, for each head.
    per_position: float = counter.get_total_flops() / 2 / length
    return round(per_position / WIDTH)


def _operations(kind: str, length: int) -> int:
    window = window_of(SETTINGS, kind)
    sizes = AttentionSizes(WIDTH, HEAD_DIM, length, length, 1, EMBED_DIM, window, causal=True)
    tally = operator_of(SETTINGS, kind, "decoder").cost(SETTINGS, sizes)
    return tally.products + tally.linear_attention


def _kernel(kind: str) -> AttentionKernel:
    return build_kernel(kind, SETTINGS, WIDTH, 1, "decoder", EMBED_DIM, HEADS, HEAD_DIM)


def _calls(
    kernels: dict[str, AttentionKernel], length: int
) -> tuple[dict[str, Call], dict[str, Call]]:
    """Calls for a whole sequence and for the token behind it, by operator, others' among them."""
    drawn = _drawn(length)
    qkv, _ = drawn
    forward, token = _kernel_calls(kernels, drawn, length)
    before, last = slice(0, length), slice(length, None)
    log_gate, beta = -torch.rand(1, HEADS, length + 1, 1), torch.rand(1, HEADS, length + 1)
    q, k, v, g, b = (part[:, :, before] for part in (*qkv, log_gate, beta))
    forward[RULE] = partial(_rule, q, k, v, g, b, None)
    state = _rule(q, k, v, g, b, None)[1]
    q, k, v, g, b = (part[:, :, last] for part in (*qkv, log_gate, beta))
    token[RULE] = partial(_rule, q, k, v, g, b, state)
    if importlib.util.find_spec("transformers") is not None:
        _add_theirs(forward, token, [*qkv, log_gate[..., 0], beta], length)
    return forward, token


def _drawn(length: int) -> tuple[list[Tensor], Tensor]:
    """Queries, keys and values of a sequence and a token behind it, and the layer's input."""
    torch.manual_seed(0)
    # As projections leave them: heads next to each other in memory.
    qkv = [torch.randn(1, length + 1, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(3)]
    return qkv, torch.randn(1, length + 1, EMBED_DIM)


def _kernel_calls(
    kernels: dict[str, AttentionKernel], drawn: tuple[list[Tensor], Tensor], length: int
) -> tuple[dict[str, Call], dict[str, Call]]:
    qkv, x_BNE = drawn
    forward: dict[str, Call] = {}
    token: dict[str, Call] = {}
    before, last = slice(0, length), slice(length, None)
    for kind, kernel in kernels.items():
        first, second = (
            partial(kernel.causal, *(part[:, :, piece] for part in qkv)) for piece in (before, last)
        )
        if kernel.reads_input:
            first, second = (
                partial(first, x_BND=x_BNE[:, before]),
                partial(second, x_BND=x_BNE[:, last]),
            )
        if kernel.reads_positions:
            second = partial(second, positions_1N=torch.tensor([[length]]))
        forward[kind] = first
        token[kind] = partial(second, state=first()[1])
    return forward, token


def _rule(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, beta: Tensor, past: Tensor | None
) -> tuple[Tensor, Tensor]:
    q, k = (x * (x.square().sum(dim=-1, keepdim=True) + 1e-6).rsqrt() for x in (q, k))
    return gated_sums(q * HEAD_DIM**-0.5, k, v, log_gate, beta, past)


def _add_theirs(
    forward: dict[str, Call], token: dict[str, Call], parts: Sequence[Tensor], length: int
) -> None:
    """The same by transformers."""
    modeling = importlib.import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    fused = importlib.import_module("transformers.integrations.sdpa_attention")
    module = torch.nn.Module().eval()
    module.num_key_value_groups, module.is_causal = 1, True  # type: ignore[assignment]
    scaling = HEAD_DIM**-0.5
    before, last = slice(0, length), slice(length, None)
    whole = [part[:, :, before] for part in parts]
    q, k, v = whole[:3]
    name = "transformers: fused softmax"
    asked = (module, parts[0][:, :, last], parts[1], parts[2], None)
    forward[name] = partial(fused.sdpa_attention_forward, module, q, k, v, None, scaling=scaling)
    token[name] = partial(fused.sdpa_attention_forward, *asked, scaling=scaling)
    name = "transformers: eager softmax"
    token[name] = partial(modeling.eager_attention_forward, *asked, scaling)
    if length <= QUADRATIC_LENGTHS:
        mask = torch.full((1, 1, length, length), -torch.inf).triu(1)
        forward[name] = partial(modeling.eager_attention_forward, module, q, k, v, mask, scaling)
    name = f"transformers: {RULE}"

    def arguments(piece: slice) -> dict[str, Any]:
        q, k, v, g, beta = (part[:, :, piece].transpose(1, 2) for part in parts)
        options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
        return {"query": q, "key": k, "value": v, "g": g, "beta": beta, **options}

    chunked = partial(modeling.torch_chunk_gated_delta_rule, **arguments(before))
    forward[name] = chunked
    token[name] = partial(
        modeling.torch_recurrent_gated_delta_rule, initial_state=chunked()[1], **arguments(last)
    )


def _in_turns(calls: dict[str, Call], times: int) -> dict[str, float]:
    """Median milliseconds of each call, of so many rounds in which all take turns."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):
        for name in list(calls) if number % 2 else list(reversed(calls)):
            start = time.perf_counter()
            for _ in range(times):
                calls[name]()
            samples[name].append(1000 * (time.perf_counter() - start) / times)
    return {name: statistics.median(row[1:]) for name, row in samples.items()}


def operator_numbers(lengths: Sequence[int] = LENGTHS) -> dict[str, Any]:
    """Times and crossings as they are kept."""
    return {
        "times": [asdict(one) for one in operator_times(lengths)],
        "crossings": [asdict(one) for one in crossings()],
    }


def operator_tables(numbers: dict[str, Any]) -> Iterator[Table]:
    """Times by operator and length, and where linear operators overtake softmax."""
    lengths = sorted({one["length"] for one in numbers["times"]})
    for key, title in (("forward_ms", "a whole sequence"), ("token_ms", "one token behind it")):
        cells = {(one["operator"], one["length"]): one[key] for one in numbers["times"]}
        names = dict.fromkeys(one["operator"] for one in numbers["times"])
        yield table_of(
            f"Causal attention, ms for {title}: {HEADS} heads of {HEAD_DIM}",
            ("operator", *(f"{length:,}" for length in lengths)),
            [(name, *(cell(cells.get((name, length))) for length in lengths)) for name in names],
        )
    yield table_of(
        "Length from which a linear operator is below fused softmax",
        ("operator", "in multiply-adds", "as computed", "in time", "ratio to computed"),
        [
            (
                one["operator"],
                f"{one['by_operations']:,}",
                f"{one['computed']:,}",
                f"{one['measured']:,.0f}" if one["measured"] else "",
                f"{one['measured'] / one['computed']:.2f}" if one["measured"] else "",
            )
            for one in numbers["crossings"]
        ],
    )


def cell(milliseconds: float | None) -> str:
    """Milliseconds in a table; nothing where there are none."""
    return "" if milliseconds is None else f"{milliseconds:.3g}"
