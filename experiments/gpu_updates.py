"""What an update takes on a card: time, share of the card's rate, kernels, waits, memory.

A supernet's update is that of a network drawn for it; beside it stand the same network trained
alone, whose kernels are asked for at once (`supernet.training.graphs`), and torch's own
`nn.Transformer` of its embedding size, layers and hidden units, in the usual loop: bf16 autocast,
fused AdamW, one wait; neither compiled nor by graphs, and of a translation with eight heads.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from nas.request.presets import budget_for
from search_spaces.architecture import Architecture
from search_spaces.loading import load_space
from search_spaces.settings import TokenInput
from search_spaces.space import SearchSpace
from supernet.building import build_network, build_supernet
from supernet.data.text_batches import PairBatch, StreamBatch
from supernet.plan import decoder_of, encoder_of
from supernet.precision import tf32
from supernet.tasks.opening import open_task
from supernet.training.loop import Trainer
from supernet.training.sampling import SingleNetwork, UniformSampler
from supernet.training_costs import A100_OPS
from supernet.training_settings import TrainingSettings

PEAKS = {"A100": A100_OPS, "H100": 989e12, "H200": 989e12}
"""bf16 multiplications and additions a second, dense. Source: NVIDIA's data sheets (SXM)."""
ROUNDS = 9
WARM_UP = 4  # a network alone is computed twice and recorded in the third

Update = Callable[[], object]


@dataclass(frozen=True)
class UpdateTime:
    """What updates of one sort take.

    Attributes:
        space: of the network.
        what: which sort.
        tokens: positions of a batch, of the longer side.
        batches: of an update.
        ms: median of an update.
        tera_operations: of an update, multiplications and additions.
        share: of the card's rate for bf16; None where its data sheet is not known here.
        busy_ms: in which the card computes.
        kernels: that it is asked for.
        waits: how often the host waits for it.
        gibibytes: largest memory held.
    """

    space: str
    what: str
    tokens: int
    batches: int
    ms: float
    tera_operations: float
    share: float | None
    busy_ms: float
    kernels: int
    waits: int
    gibibytes: float


def update_times(
    name: str, preset: str = "standard", networks: int = 2, device: str = "cuda", **changed: Any
) -> Iterator[UpdateTime]:
    """Of a space of texts, one after the other.

    Args:
        name: of a shipped space.
        preset: whose numbers train.
        networks: drawn for the supernet, each with a row.
        device: a card.
        **changed: numbers of the training in place of the preset's.
    """
    space = load_space(name)
    settings = replace(budget_for(space, preset, {}).supernet, **changed)
    sampler = UniformSampler(space, 1, seed=0)
    drawn = [sampler.draw()[0] for _ in range(networks)]
    task = open_task(space, "synthetic", None, 0)
    batches = [full_batch(space, settings, seed).to(device) for seed in range(settings.accumulate)]
    operations = 0.0
    one_by_one = _Fixed(drawn[0])
    torch.manual_seed(0)
    model: Any = build_supernet(space, settings.dropout)
    trainer = Trainer(model.train(), one_by_one, drawn, task, settings, seed=0, device=device)
    update = partial(trainer._update, batches)
    for network in reversed(drawn):
        one_by_one.network = network
        with FlopCounterMode(display=False) as counter:
            trainer._update(batches[:1])
        operations = float(counter.get_total_flops()) * len(batches)
        yield _timed(update, space, settings, f"supernet, {network.id}", operations)
    del model, trainer, update
    model = build_network(space.model, space.task, drawn[0], settings.dropout).network
    alone = SingleNetwork(drawn[0])
    trainer = Trainer(model.train(), alone, drawn[:1], task, settings, seed=0, device=device)
    update = partial(trainer._update, batches)
    yield _timed(update, space, settings, f"alone, {drawn[0].id}", operations)
    del model, trainer, update
    yield _torchs(space, settings, drawn[0], batches, device)


class _Fixed:
    """Draws a network of ours; nothing may be kept from one update to the next."""

    def __init__(self, network: Architecture) -> None:
        self.network = network

    def draw(self) -> list[Architecture]:
        """The network."""
        return [self.network]


def full_batch(space: SearchSpace, settings: TrainingSettings, seed: int = 0) -> Any:
    """Random texts without padding, as many as a batch holds: pairs of the workload's lengths."""
    generator = torch.Generator().manual_seed(seed)
    source = space.model.input
    assert isinstance(source, TokenInput)

    def texts(rows: int, length: int) -> Tensor:
        return torch.randint(4, source.vocab_size, (rows, length), generator=generator)

    if space.task == "translation":
        lengths = int(space.workload["source"]), int(space.workload["target"])
        rows = settings.max_tokens // max(lengths)
        sides = [texts(rows, length) for length in lengths]
        masks = [tokens != 0 for tokens in sides]
        return PairBatch(
            torch.arange(rows), sides[0], masks[0], sides[1], sides[1], masks[1], sides[1].numel()
        )
    rows = max(1, settings.max_tokens // settings.segment_length)
    inputs = texts(rows, settings.segment_length)
    return StreamBatch(inputs, inputs, inputs != 0, inputs.numel(), continues=False)


class _TorchTranslation(nn.Module):
    """Torch's own layers, of a network's embedding size, layers, heads and hidden units."""

    def __init__(self, space: SearchSpace, network: Architecture, dropout: float) -> None:
        super().__init__()
        encoder, decoder = encoder_of(network), decoder_of(network)
        source = space.model.input
        assert isinstance(source, TokenInput)
        dim = encoder.embed_dim
        self.embedding = nn.Embedding(source.vocab_size, dim)
        self.body = nn.Transformer(
            dim,
            8,
            len(encoder.layers),
            len(decoder.layers),
            round(np.mean([layer.ffn_dim for layer in encoder.layers])),
            dropout,
            batch_first=True,
        )
        self.output = nn.Linear(dim, source.vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, batch: PairBatch) -> Tensor:
        """Logits ``(B, N, V)``."""
        length = batch.inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, batch.inputs.device)
        out_BND = self.body(
            self.embedding(batch.source),
            self.embedding(batch.inputs),
            tgt_mask=mask,
            tgt_is_causal=True,
        )
        return self.output(out_BND)  # type: ignore[no-any-return]


class _TorchText(nn.Module):
    """The same of a decoder alone, which torch's encoder with a causal mask is."""

    def __init__(self, space: SearchSpace, network: Architecture, dropout: float) -> None:
        super().__init__()
        decoder, source = decoder_of(network), space.model.input
        assert isinstance(source, TokenInput)
        dim, layer = decoder.embed_dim, decoder.layers[0]
        hidden = round(np.mean([one.ffn_dim for one in decoder.layers]))
        self.embedding = nn.Embedding(source.vocab_size, dim)
        block = nn.TransformerEncoderLayer(
            dim, layer.self_num_heads, hidden, dropout, norm_first=True, batch_first=True
        )
        self.body = nn.TransformerEncoder(block, len(decoder.layers), enable_nested_tensor=False)
        self.output = nn.Linear(dim, source.vocab_size, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, batch: StreamBatch) -> Tensor:
        """Logits ``(B, N, V)``."""
        length = batch.inputs.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, batch.inputs.device)
        out_BND = self.body(self.embedding(batch.inputs), mask=mask, is_causal=True)
        return self.output(out_BND)  # type: ignore[no-any-return]


def _torchs(
    space: SearchSpace,
    settings: TrainingSettings,
    network: Architecture,
    batches: Sequence[Any],
    device: str,
) -> UpdateTime:
    sort = _TorchTranslation if space.task == "translation" else _TorchText
    with torch.device(device):
        model = sort(space, network, settings.dropout).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def update() -> float:
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=device)
        for batch in batches:
            with torch.autocast(torch.device(device).type, torch.bfloat16):
                logits = model(batch)
            loss = F.cross_entropy(
                logits.flatten(0, 1).float(),
                batch.targets.flatten(),
                label_smoothing=settings.label_smoothing,
            )
            (loss / len(batches)).backward()
            total += loss.detach()
        if settings.clip_norm:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        return float(total)

    with FlopCounterMode(display=False) as counter:
        update()
    return _timed(update, space, settings, "nn.Transformer", float(counter.get_total_flops()))


def _timed(
    update: Update, space: SearchSpace, settings: TrainingSettings, what: str, operations: float
) -> UpdateTime:
    with tf32("cuda"):
        return _measured(update, space, settings, what, operations)


def _measured(
    update: Update, space: SearchSpace, settings: TrainingSettings, what: str, operations: float
) -> UpdateTime:
    for _ in range(WARM_UP):
        update()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        update()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    seconds = float(np.median(times))
    busy_ms, kernels = _on_the_card(update)
    peak = next(
        (rate for name, rate in PEAKS.items() if name in torch.cuda.get_device_name()), None
    )
    return UpdateTime(
        space=space.name,
        what=what,
        tokens=settings.max_tokens,
        batches=settings.accumulate,
        ms=1000 * seconds,
        tera_operations=operations / 1e12,
        share=None if peak is None else operations / seconds / peak,
        busy_ms=busy_ms,
        kernels=kernels,
        waits=waits(update),
        gibibytes=torch.cuda.max_memory_allocated() / 2**30,
    )


def _on_the_card(update: Update) -> tuple[float, int]:
    """Milliseconds in which kernels run, and how many there are, copies and fills included."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiled:
        update()
        torch.cuda.synchronize()
    events = [one for one in profiled.events() if one.device_type == DeviceType.CUDA]
    return sum(one.device_time for one in events) / 1000, len(events)


def waits(update: Update) -> int:
    """How often the host waits for the card in an update, as torch notices it."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in told)
