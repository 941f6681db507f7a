"""What trains the supernet of a run, alone or as one process of several."""

from __future__ import annotations

import numpy as np
import torch

from nas.run.opened import PROBES, OpenedRun
from nas.run.training_memory import supernet_need
from search_spaces.variation import sample_distinct
from supernet.building import build_supernet
from supernet.training.checkpoint import CheckpointFolder
from supernet.training.loop import EpochReport, Trainer
from supernet.training.parallel import Group
from supernet.training.sampling import build_sampler


def supernet_trainer(
    run: OpenedRun, device: str | None = None, group: Group | None = None
) -> Trainer:
    """What trains the run's supernet in this process.

    Args:
        run: the run.
        device: where; the run's own if not given.
        group: the processes that train it together; this one alone if not given.
    """
    settings = run.spec.budget.supernet
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(run.spec.seed)
        model = build_supernet(run.space, settings.dropout)
    if run.spec.start is not None:
        model.load_state_dict(run.first_weights())
    probes = sample_distinct(run.space, run.rng(PROBES), settings.num_probes)
    return Trainer(
        model,
        build_sampler(run.space, settings, run.spec.seed),
        run.space.decode(probes),
        run.quick_task,
        settings,
        seed=run.spec.seed,
        device=device or run.spec.device,
        folder=supernet_checkpoints(run),
        group=group,
        teacher=run.teacher,
        need=supernet_need(run.space, settings, 1 if group is None else group.size, run.teacher),
    )


def supernet_checkpoints(run: OpenedRun) -> CheckpointFolder:
    """Where the training keeps its checkpoints, the last and the best."""
    return CheckpointFolder(run.folder.path / "supernet", run.spec.digest, run.folder.check)


def training_losses(report: EpochReport) -> dict[str, float]:
    """The losses of an epoch: of training, and on the validation split where it was checked."""
    losses = {"loss": report.train_loss}
    if report.probe_losses:
        losses["validation_loss"] = float(np.mean(report.probe_losses))
    return losses
