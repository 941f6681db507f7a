"""What a search of WMT'14 in the preset `paper` costs on A100s, by arithmetic.

`python -m experiments.cluster_cost` prints the tables of docs/cluster.md. Nothing here ran on an
A100: work is counted in operations, exactly, with the project's cost formulas over a sample of the
space, and divided by what a GPU is assumed to get done. `--measure` times a training step on this
machine beside its forward pass, to see that the factor between them is what is assumed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nas.objectives.size import network_costs
from nas.run.presets import budget_for
from nas.run.spec import Budget
from search_spaces.loading import load_space
from search_spaces.operators import sample
from search_spaces.space import SearchSpace
from supernet.training_settings import TrainingSettings

# One published number, which others compare with; it says nothing of the GPUs.
PUBLISHED_HAT_GPU_HOURS = 264.0
SAMPLE = 2000
# The cost formulas count a pair of sentences of so many tokens on each side.
TOKENS = 30
# newstest2013, which the search validates on: pairs, and tokens of a line with padding.
VALID_PAIRS, VALID_TOKENS = 3000, 36


@dataclass(frozen=True)
class Gpu:
    """What a GPU is assumed to do.

    Attributes:
        peak: operations a second, dense bf16, by its data sheet.
        best_share: of that, with batches that fill it.
        half_tokens: tokens on a GPU with which half of `best_share` is reached.
        step_s: seconds that a pass forward and back takes at least: thousands of small kernels
            are started one after the other.
        memory_bytes: moved a second, for the optimiser.
        exchange_bytes: of gradients that a GPU adds up with its neighbours in a second.
        timed_ms: translating one line with a beam, of a network of middling size.
    """

    peak: float = 312e12
    best_share: float = 0.40
    half_tokens: float = 1000.0
    step_s: float = 0.025
    memory_bytes: float = 1.5e12
    exchange_bytes: float = 150e9
    timed_ms: float = 200.0

    def seconds(self, operations: float, tokens: float) -> float:
        """Of one pass with so many tokens."""
        share = self.best_share * tokens / (tokens + self.half_tokens)
        return operations / (self.peak * share)


# A training step is a forward pass and twice as much backward.
BACKWARD = 3.0
# Read weights, gradients and two moments, write all but the gradients; 4 bytes each.
OPTIMISER_BYTES = 28.0


@dataclass(frozen=True)
class Row:
    """A stage: its operations, and the hours from its begin to its end on so many GPUs."""

    stage: str
    work: str
    operations: float
    hours: float


@dataclass(frozen=True)
class Workbook:
    """The numbers of a space.

    Attributes:
        name: of the space.
        budget: of the preset.
        token_flops: operations of a forward pass for each target token, mean over the space.
        largest_params: of the supernet.
        networks: that train in an update.
    """

    name: str
    budget: Budget
    token_flops: float
    largest_params: float
    networks: int


def workbook(name: str, accumulate: int | None = None) -> Workbook:
    """Count the work of a translation space in the preset `paper`.

    Args:
        name: of the space.
        accumulate: batches per update, in place of the preset's.
    """
    space = load_space(name)
    assert space.task == "translation", "only translation counts pairs of tokens"
    given = {f"{part}.accumulate": str(accumulate) for part in ("supernet", "retrain")}
    budget = budget_for(space, "paper", given if accumulate else {})
    rows = sample(space, np.random.default_rng(0), SAMPLE)
    flops = float(network_costs(space, rows)[:, 1].mean()) / TOKENS
    ends = 2 if budget.supernet.sampling == "sandwich" else 0
    networks = budget.supernet.num_random + ends
    return Workbook(name, budget, flops, _largest_params(space), networks)


def _largest_params(space: SearchSpace) -> float:
    from search_spaces.operators import largest

    return float(network_costs(space, largest(space))[0, 0])


def update_seconds(book: Workbook, training: TrainingSettings, gpu: Gpu, gpus: int) -> float:
    """One update on several GPUs together."""
    tokens = training.max_tokens
    whole = training.accumulate // gpus
    cut = training.accumulate - whole * gpus
    networks = book.networks

    def one_pass(share: float) -> float:
        operations = BACKWARD * book.token_flops * tokens * share
        return max(gpu.step_s, gpu.seconds(operations, tokens * share))

    passes = networks * (whole * one_pass(1.0) + cut * one_pass(1.0 / gpus))
    optimiser = book.largest_params * OPTIMISER_BYTES / gpu.memory_bytes
    exchange = 0.0
    if gpus > 1:
        exchange = 2 * (gpus - 1) / gpus * 4 * book.largest_params / gpu.exchange_bytes
    return passes + optimiser + exchange


def stages(book: Workbook, gpu: Gpu, gpus: int, together: int) -> list[Row]:
    """Every stage that needs a GPU.

    Args:
        book: the work.
        gpu: what each does.
        gpus: that are rented.
        together: of them that train the supernet.
    """
    budget = book.budget
    training, retraining = budget.supernet, budget.retrain
    valid = book.token_flops * VALID_PAIRS * VALID_TOKENS
    scored = gpu.seconds(valid, 4096)
    checks = math.ceil(_epochs(training) / training.check_every) * training.num_probes
    updates = training.max_updates
    step = BACKWARD * book.token_flops * training.max_tokens * training.accumulate
    timed = budget.latency_samples * budget.timing_rounds * gpu.timed_ms / 1000
    again = retraining.max_updates * update_seconds(_alone(book), retraining, gpu, 1)
    tokens = retraining.max_tokens * retraining.accumulate * retraining.max_updates
    return [
        Row("latency", f"{budget.latency_samples} networks timed, on one GPU", 0, timed / 3600),
        Row(
            "supernet",
            f"{updates:,} updates of {training.max_tokens * training.accumulate:,} tokens",
            updates * step * book.networks,
            updates * update_seconds(book, training, gpu, together) / 3600,
        ),
        Row(
            "supernet's checks",
            f"{checks:,} evaluations of probe networks",
            checks * valid,
            checks * scored / together / 3600,
        ),
        Row(
            "observe",
            f"{budget.observations:,} networks",
            budget.observations * valid,
            budget.observations * scored / gpus / 3600,
        ),
        Row(
            "verify",
            f"{budget.verified} networks, timed on one GPU",
            budget.verified * valid,
            (budget.verified * scored / gpus + timed * budget.verified / budget.latency_samples)
            / 3600,
        ),
        Row(
            "retrain",
            "the chosen network, of mean size, on one GPU",
            BACKWARD * book.token_flops * tokens,
            again / 3600,
        ),
    ]


def _epochs(training: TrainingSettings) -> int:
    return math.ceil(training.max_updates / training.epoch_updates)


def _alone(book: Workbook) -> Workbook:
    return Workbook(book.name, book.budget, book.token_flops, book.largest_params, 1)


def gpu_hours(rows: Sequence[Row], gpus: int) -> float:
    """Of all rows, while all GPUs are rented from the first to the last."""
    return gpus * sum(row.hours for row in rows)


def table(book: Workbook, gpu: Gpu, gpus: int, together: int) -> str:
    """The rows as Markdown."""
    rows = stages(book, gpu, gpus, together)
    lines = [
        f"{book.name}, preset paper, {book.budget.supernet.accumulate} batch(es) an update, "
        f"{gpus} × A100, of which {together} train the supernet",
        "",
        "| stage | work | operations | hours | GPU-hours rented |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        operations = f"{row.operations:.2g}" if row.operations else "–"
        hours = f"{row.hours:.2f} | {row.hours * gpus:.2f}"
        lines.append(f"| {row.stage} | {row.work} | {operations} | {hours} |")
    total = sum(row.hours for row in rows)
    lines.append(f"| **all** | | | **{total:.1f}** | **{gpu_hours(rows, gpus):.1f}** |")
    return "\n".join(lines)


def compared(book: Workbook, gpu: Gpu) -> str:
    """HAT's published GPU-hours beside the same training by this arithmetic."""
    (row,) = [one for one in stages(book, gpu, 1, 1) if one.stage == "supernet"]
    rate = row.operations / (PUBLISHED_HAT_GPU_HOURS * 3600)
    return (
        f"HAT's own search space, trained as HAT's released configuration says: "
        f"{row.operations:.2g} operations, {row.hours:.0f} A100-hours by this arithmetic. In the "
        "published "
        f"{PUBLISHED_HAT_GPU_HOURS:.0f} GPU-hours that is {rate / 1e12:.1f} TFLOP/s on each GPU."
    )


# -- a step beside its forward pass, on this machine ------------------------------------------


def measure(name: str, tokens: int, rounds: int) -> str:
    """Time forward passes and passes with gradients of random networks of a space's supernet."""
    import torch

    from supernet.building import build_supernet
    from supernet.loss import smoothed_cross_entropy

    space = load_space(name)
    torch.manual_seed(0)
    model = build_supernet(space)
    networks = space.decode(sample(space, np.random.default_rng(0), rounds + 1))
    vocabulary = space.model.input.vocab_size  # type: ignore[union-attr]
    side = tokens // TOKENS
    source, target = torch.randint(4, vocabulary, (2, side, TOKENS))
    found: list[tuple[float, float]] = []
    for network in networks:  # the first one warms up
        begin = time.perf_counter()
        logits = model(source, target, network)
        loss = smoothed_cross_entropy(logits.flatten(0, 1), target.flatten())
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        model.zero_grad(set_to_none=True)
        found.append((middle - begin, end - begin))
    ratios = [whole / forward for forward, whole in found[1:]]
    seconds = statistics.median(whole for _, whole in found[1:])
    rate = BACKWARD * workbook(name).token_flops * side * TOKENS / seconds
    return (
        f"{name} here, {torch.get_num_threads()} thread(s), fp32, {side * TOKENS} tokens: "
        f"{seconds:.2f} s a step ({rate / 1e9:.0f} GFLOP/s), {statistics.median(ratios):.2f} times "
        f"its forward pass (median of {rounds})"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Plain)
    parser.add_argument("--measure", action="store_true", help="time steps on this machine as well")
    parser.add_argument("--tokens", type=int, default=240, help="of a step that is timed")
    parser.add_argument("--rounds", type=int, default=9, help="steps that are timed")
    given = parser.parse_args(arguments)
    gpu, book = Gpu(), workbook("wmt14")
    parts = [table(book, gpu, 8, together) for together in (1, 8)]
    parts += [table(book, gpu, 1, 1), table(workbook("wmt14", 8), gpu, 8, 8)]
    parts += [compared(workbook("wmt14-hat"), gpu)]
    if given.measure:
        parts.append(measure("wmt14", given.tokens, given.rounds))
    print("\n\n".join(parts))


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of the description."""


if __name__ == "__main__":
    main()
