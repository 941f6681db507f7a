"""The numbers of a training, with the range of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le

Sampling = Literal["uniform", "sandwich", "largest", "fair"]
Schedule = Literal["cosine", "inverse_sqrt"]
LARGEST_COUNT = 10_000_000
Count = Annotated[int, Ge(1), Le(LARGEST_COUNT)]
Share = Annotated[float, Ge(0.0), Le(1.0)]

ENDS: Mapping[Sampling, int] = {"uniform": 0, "sandwich": 2, "largest": 1, "fair": 0}
"""Networks that train in every update besides those drawn: the largest, and the smallest."""


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Everything that decides a training besides model, data and seed.

    The ranges are checked where settings come from outside (`nas.request.spec`).

    Attributes:
        epochs: passes over the training split, or over a part of it: see `epoch_updates`.
        epoch_updates: an epoch ends after so many updates, with batches drawn from the whole split;
            0 for a whole pass. For corpora of which a pass takes hours: checks and checkpoints
            come between epochs.
        max_updates: end in the midst of an epoch after so many updates; 0 for no such end.
        batch_size: examples of a batch; classification and embedding only.
        max_tokens: tokens of a batch, padding included; translation and language modelling only.
            For pairs it counts the longer side.
        segment_length: tokens that a language model reads at once.
        accumulate: batches per update; its loss is the mean over the labels of all of them.
        learning_rate: peak rate of AdamW, which a linear warm-up leads to.
        initial_rate: where the warm-up begins.
        schedule: what follows it: ``cosine`` falls towards zero, which the update behind the last
            would have, ``inverse_sqrt`` falls with the square root of the updates done.
        adam_beta2: decay of AdamW's second moments; the first is 0.9.
        weight_decay: of matrices; vectors (norms, biases) are not decayed.
        warmup_share: share of all updates spent warming up.
        label_smoothing: share of the label spread over all classes.
        clip_norm: largest gradient norm; 0 switches clipping off.
        dropout: rate at the largest width, see `ScaledDropout`.
        augmentation: names and strengths understood by `parse_augmentation`, for example
            ``"shift=1"``; empty for none.
        sampling: which networks of a supernet train in each update.
        num_random: networks drawn per update besides its ends, see `ENDS`.
        distillation: weight of the largest network's soft labels in the loss of the others,
            0 (labels only) to 1 (soft labels only), where it trains in every update. In a search
            that begins with a checkpoint, weight of the checkpoint's soft labels in the loss of
            all; of texts that are embedded, of its states of all tokens.
        ema_decay: decay per update of the averaged weights that are kept; 0 keeps the last.
        average_last: a single network ends with the mean of its weights after each of the last so
            many epochs; 0 takes the weights with the lowest validation loss.
        stop_tau: ranking-stability stop: end when Kendall's tau between the probe networks'
            losses now and one check ago reaches this twice in a row; above 1 never stops.
            Supernets only, for a single network has no ranking.
        stop_loss: end after the first epoch whose mean training loss is below this, where some
            networks learn a task in a fraction of the updates that others take; 0 never stops.
        check_every: epochs between checks of the probe networks, and of checkpoints.
        checkpoint_updates: also keep a checkpoint after so many updates within an epoch, where
            epochs take long; 0 for none. Dropout draws anew there, so the number is a part of
            what decides the weights.
        num_probes: networks in that check.
        bfloat16: train under autocast to bfloat16; null for doing so on cards that have it, where
            evaluation does in any case. On a processor it pays where that has such products (AMX,
            ``avx512_bf16``).
        loss_chunk: tokens whose logits are held at a time; 0 for those of the whole batch. Large
            vocabularies need more memory for logits than for all else, and the loss is the same;
            tasks that write tokens only.
        recompute: activation checkpointing: keep the input of each layer only, and compute the rest
            once more for its gradients: less memory, a third more time, the same result.
        threads: of the CPU, in updates, scores and refits of these weights; null for as many as the
            run has. Timings keep the run's, so that networks can be timed on one core while all
            cores train. Without dropout two halves of an even number compute rows of their own (see
            `supernet.training.lanes`), so that the number decides the last digits of weights.
        deterministic: on a graphics card, the same weights whenever a training is repeated, at some
            cost in time; on a processor they are the same in any case.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    epochs: Count = 60
    epoch_updates: Annotated[int, Ge(0), Le(100_000_000)] = 0
    max_updates: Annotated[int, Ge(0), Le(100_000_000)] = 0
    batch_size: Count = 64
    max_tokens: Count = 4096
    segment_length: Count = 128
    accumulate: Annotated[int, Ge(1), Le(10_000)] = 1
    learning_rate: Annotated[float, Gt(0.0), Le(10.0)] = 2e-3
    initial_rate: Annotated[float, Ge(0.0), Le(10.0)] = 0.0
    schedule: Schedule = "cosine"
    adam_beta2: Annotated[float, Gt(0.0), Le(0.99999)] = 0.98
    weight_decay: Annotated[float, Ge(0.0), Le(10.0)] = 0.05
    warmup_share: Share = 0.1
    label_smoothing: Share = 0.1
    clip_norm: Annotated[float, Ge(0.0)] = 1.0
    dropout: Annotated[float, Ge(0.0), Le(0.95)] = 0.0
    augmentation: str = ""
    sampling: Sampling = "sandwich"
    num_random: Count = 2
    distillation: Share = 0.0
    ema_decay: Annotated[float, Ge(0.0), Le(0.99999)] = 0.0
    average_last: Annotated[int, Ge(0), Le(1000)] = 0
    stop_tau: Annotated[float, Gt(0.0), Le(2.0)] = 2.0
    stop_loss: Annotated[float, Ge(0.0), Le(1000.0)] = 0.0
    check_every: Count = 5
    checkpoint_updates: Annotated[int, Ge(0), Le(100_000_000)] = 0
    num_probes: Count = 32
    bfloat16: bool | None = None
    loss_chunk: Annotated[int, Ge(0), Le(LARGEST_COUNT)] = 0
    recompute: bool = False
    deterministic: bool = False
    threads: Annotated[int, Ge(1), Le(1024)] | None = None


def planned_updates(settings: TrainingSettings, num_batches: int) -> int:
    """Updates of a whole training.

    Args:
        settings: the numbers.
        num_batches: batches of one pass over the training split.
    """
    total = settings.epochs * epoch_updates(settings, num_batches)
    return min(total, settings.max_updates) if settings.max_updates else total


def epoch_updates(settings: TrainingSettings, num_batches: int) -> int:
    """Updates of an epoch; arguments as of `planned_updates`."""
    updates = math.ceil(num_batches / settings.accumulate)
    return min(updates, settings.epoch_updates or updates)
