"""A run as executors see it: its folder, its data and its supernet.

This is what training, retraining and evaluating need, in the process that works on the run and in
a worker that opens the same folder. `nas.stages.Run` adds the executor and what stages share.
"""

from __future__ import annotations

from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from nas.run.checkpoint import open_checkpoint
from nas.run.evaluator import (
    Evaluator,
    beside_checkpoint,
    compared_on,
    trained_supernet,
    use_threads,
)
from nas.run.folder import RunFolder, supernet_gone
from nas.run.layout import (
    DATA_FILE,
    DISTILLED_FILE,
    INHERITED_FILE,
    SPEC_FILE,
    SUPERNET_FILE,
)
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError, UsageError
from search_spaces.space import SearchSpace
from supernet.extraction import StandAlone, Supernet
from supernet.pretrained.checkpoint import Checkpoint
from supernet.seeds import mixed_seed
from supernet.tasks.base import Task
from supernet.tasks.opening import open_task
from supernet.training.checkpoint import dumped, load

JUDGED_BATCHES = 16
"""Batches by which heads, neurons and layers of a checkpoint are put in order, and to which output
layers are fitted."""
# What each stage draws its random numbers from, beside the run's seed.
OBSERVE, PROBES, RANK, PRUNE, BESIDE, DISTIL, FINE_TUNE = 1, 2, 3, 4, 5, 6, 7


class OpenedRun:
    """A run folder with its data and its supernet, each loaded when first asked for.

    Args:
        folder: the run.
    """

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.spec = folder.spec
        self.domain = folder.spec.domain
        use_threads(self.spec)

    @property
    def space(self) -> SearchSpace:
        """The space of this project's own networks, see `SearchSpec.space`."""
        return self.spec.space

    def rng(self, purpose: int) -> np.random.Generator:
        """Random numbers of one purpose."""
        return np.random.default_rng([self.spec.seed, purpose])

    def training_seed(self, purpose: int) -> int:
        """The seed of a training of one purpose beside the supernet's.

        Where weights go from one training into the next it is another than the run's, so that they
        are not trained on the same batches again.
        """
        spec = self.spec
        return spec.seed if spec.start is None else mixed_seed(spec.seed, purpose)

    def training_digest(self, purpose: int) -> str:
        """What the checkpoints of such a training are of: the run, with a seed that is not its."""
        spec, seed = self.spec, self.training_seed(purpose)
        return spec.digest if seed == spec.seed else f"{spec.digest}-{seed}"

    @cached_property
    def task(self) -> Task[Any, Any]:
        """What is learnt, with its training and validation split.

        Raises:
            DataError: when the data are not those the run began with.
        """
        spec = self.spec
        task = open_task(self.space, spec.dataset, spec.data, spec.seed)
        if self.folder.has(DATA_FILE):
            known = self.folder.read_json(DATA_FILE)
            if known.get("digest") != task.digest:
                raise DataError(
                    f"the data set {spec.data or spec.dataset} has changed since this run began; "
                    "put the old data back, or start a new run in another folder"
                )
        return beside_checkpoint(task, spec, self._taught_by) if spec.quality == "kl" else task

    @cached_property
    def quick_task(self) -> Task[Any, Any]:
        """The same, with as many validation examples as networks are compared on."""
        return compared_on(self.task, self.spec)

    @cached_property
    def supernet(self) -> Supernet:
        """The trained supernet."""
        return trained_supernet(self.spec, self._trained_weights())

    @cached_property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the run began with; None where networks are trained from scratch.

        Raises:
            DataError: when it is gone, damaged, or another one.
        """
        start = self.spec.start
        return None if start is None else open_checkpoint(start)

    @cached_property
    def teacher(self) -> StandAlone | None:
        """The checkpoint's own network, frozen and on the CPU, where the run begins with one."""
        return None if self.checkpoint is None else self.checkpoint.network().requires_grad_(False)

    def _taught_by(self) -> StandAlone:
        assert self.teacher is not None
        return self.teacher

    def judged_inputs(self) -> list[Tensor]:
        """Inputs of the first training batches, by which a checkpoint's parts are judged."""
        task, spec = self.quick_task, self.spec
        stream = task.batches(
            spec.budget.supernet, seed=spec.seed, epoch=0, device=self.computes_on
        )
        return [task.inputs(batch) for batch in islice(stream, JUDGED_BATCHES)]

    def first_weights(self) -> dict[str, Any]:
        """What the supernet of a run that begins with a checkpoint is trained from."""
        distilled = self.folder.has(DISTILLED_FILE)
        file = DISTILLED_FILE if distilled else INHERITED_FILE
        weights: dict[str, Any] = load(self.folder.path / file)["weights"]
        return weights

    @property
    def computes_on(self) -> str:
        """The device that this process computes on while it works on the run."""
        return self.spec.device

    @property
    def data_digest(self) -> str:
        """Digest of the data that the run began with."""
        return str(self.folder.read_json(DATA_FILE)["digest"])

    def weights(self) -> bytes | None:
        """The trained supernet's weights, as a checkpoint; None in a run without a supernet."""
        if self.spec.trains_alone or self.spec.evaluator is not None:
            return None
        return dumped({"weights": self._trained_weights()})

    def _trained_weights(self) -> dict[str, Any]:
        if not self.folder.has(SUPERNET_FILE):
            raise UsageError(supernet_gone(self.folder.path))
        weights: dict[str, Any] = load(self.folder.path / SUPERNET_FILE)["weights"]
        return weights

    @cached_property
    def _evaluator(self) -> Evaluator:
        supernet = None if self.spec.trains_alone else self.supernet
        return Evaluator(self.spec, self.quick_task, supernet)

    def prepare(self) -> None:
        """Load what `quality` needs."""
        _ = self._evaluator

    def quality(self, network: Architecture) -> dict[str, float]:
        """What the validation split says of a network, in this process; see `Evaluator`."""
        return self._evaluator.quality(network)


def shared_run(path: str | Path) -> OpenedRun:
    """Open a run folder that lies on a disk all machines see.

    Raises:
        UsageError: when it is not there.
    """
    if not (Path(path) / SPEC_FILE).exists():
        raise UsageError(
            f"a worker does not see the run folder {path}: put it on a disk that every machine of "
            "the cluster sees under the same path"
        )
    return OpenedRun(RunFolder.open(Path(path)))
