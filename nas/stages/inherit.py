"""The stage that takes over a checkpoint's weights, and tells what it is worth itself."""

from __future__ import annotations

from collections.abc import Iterator

from nas.objectives import QUALITY
from nas.run.duration import Asked, Plan
from nas.run.evaluator import validation_quality
from nas.run.events import ArchitectureMeasured, Event, Progress
from nas.run.layout import BASELINE_FILE, INHERITED_FILE
from nas.stages.base import Run
from supernet.depth import ORDER
from supernet.inheritance.inherit import inherit
from supernet.inheritance.parts import stack_name
from supernet.tasks.evaluation import by_distance
from supernet.threads import cpu_threads
from supernet.training.checkpoint import save


def work(run: Run) -> Iterator[Event]:
    """Write the supernet's first weights, and the checkpoint's own scores."""
    checkpoint, teacher, spec = run.checkpoint, run.teacher, run.spec
    assert checkpoint is not None and teacher is not None
    task, device = run.quick_task, run.computes_on
    yield Progress("inherit", 0, 2, f"{checkpoint.family}, {checkpoint.folder}")
    with cpu_threads(spec.budget.supernet.threads):
        weights = inherit(run.space, checkpoint, run.judged_inputs(), device, spec.seed)
    save(run.folder.path / INHERITED_FILE, {"weights": weights})
    yield Progress("inherit", 1, 2)
    network = checkpoint.architecture
    model = teacher.to(device).network
    with cpu_threads(spec.budget.supernet.threads):
        values = validation_quality(task, model, network, spec.quality, device)
        distances = by_distance(task, model, network, task.valid, device=device)
    order = weights[f"{stack_name(network)}.{ORDER}"].tolist()
    line = {"id": network.id, "architecture": network.to_json(), "values": values}
    line["layer_order"] = order
    line["by_distance"] = distances
    run.folder.write_json(BASELINE_FILE, line)
    yield ArchitectureMeasured("inherit", network.id, values)
    yield Progress("inherit", 2, 2, f"the checkpoint's {QUALITY} is {values[QUALITY]:.4g}")


def plan(asked: Asked) -> Plan:
    """How much there is to do.

    Its time is not told: how long it takes to put heads, neurons and layers in order follows from
    no part of it that could be tried before.
    """
    return Plan("fits output layers to the checkpoint, whose time is not told", told=False)
