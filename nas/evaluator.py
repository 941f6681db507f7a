"""Measures networks: quality with inherited weights, latency on the device.

One of the few modules of `nas` that know torch. It joins the supernet with the search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from latency.device import describe_device
from latency.profile import DeviceProfile, ProfileHeader, default_profile_path, open_profile
from latency.timer import time_calls
from latency.workload import Workload
from nas.objectives import BEST_BLEU, QUALITY, QualityMetric
from nas.spec import SearchSpec
from nas.timed_work import check_workload, timed_call
from search_spaces.architecture import Architecture
from search_spaces.measurement import Measurement
from search_spaces.space import SearchSpace
from supernet.beam_search import BeamSettings
from supernet.extraction import Supernet
from supernet.tasks.base import Task
from supernet.tasks.scores import split_bleu
from supernet.tasks.translation import TranslationTask
from supernet.training.evaluation import evaluate

WARMUP = 1  # the timer calls each network once more, to see how long a call is


def use_threads(spec: SearchSpec) -> None:
    """Let torch use as many CPU threads as the run is specified with."""
    if spec.budget.threads is not None:
        torch.set_num_threads(spec.budget.threads)


def inherited_quality(
    task: Task[Any, Any],
    supernet: Supernet,
    architecture: Architecture,
    metric: QualityMetric,
    device: str,
) -> dict[str, float]:
    """What a network is worth on the validation split with the supernet's weights.

    Args:
        task: with the validation examples to look at.
        supernet: the weights.
        architecture: the network.
        metric: ``bleu`` translates greedily, which is several times faster than with a beam and
            ranks networks alike.
        device: where to compute.

    Returns:
        ``quality``, of which less is better, and what it is made of.
    """
    result = evaluate(task, supernet, architecture, task.valid, device=device)
    values = {QUALITY: result.loss, "valid_accuracy": result.accuracy}
    if metric == "loss":
        return values
    assert isinstance(task, TranslationTask)
    bleu = split_bleu(task, supernet, architecture, task.valid, device, BeamSettings(beam_size=1))
    values |= {"valid_loss": result.loss, "valid_bleu": bleu.score}
    return values | {QUALITY: BEST_BLEU - bleu.score}


class LatencyMeter:
    """Times networks of a space on this machine, each one once.

    What was timed is kept in the device's profile in the user's cache folder: a network is not
    timed again by a later run, which is what makes a search with latency repeatable.

    Args:
        spec: its space's workload is timed on its device.

    Raises:
        UsageError: when that is not something the space's networks can do.
    """

    def __init__(self, spec: SearchSpec) -> None:
        use_threads(spec)
        self._space = spec.space
        self._device = spec.device
        self._rounds = spec.budget.timing_rounds
        self.workload = Workload.from_mapping(spec.space.workload)
        check_workload(spec.space, self.workload)
        self.header = ProfileHeader(
            describe_device(spec.device), self.workload, _settings_digest(spec.space)
        )
        self._profile: DeviceProfile = open_profile(default_profile_path(self.header), self.header)

    def known(self, architecture: Architecture) -> bool:
        """Whether a network needs no timing."""
        return self._profile.get(architecture.id) is not None

    def measure(self, architectures: Sequence[Architecture]) -> list[Measurement]:
        """Median milliseconds of each network, timing together those not in the profile."""
        return self._profile.measure(architectures, self._time)

    def _time(self, architectures: list[Architecture]) -> list[Measurement]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            timings = time_calls(
                [
                    timed_call(self._space, architecture, self.workload, self._device)
                    for architecture in architectures
                ],
                self._device,
                dtype=self.workload.dtype,
                warmup=WARMUP,
                repeats=self._rounds,
            )
        return [timing.measurement(self.header.device.label) for timing in timings]


def _settings_digest(space: SearchSpace) -> str:
    text = json.dumps([space.task, asdict(space.model)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
