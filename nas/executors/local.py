"""Does everything in this process, one network after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from latency.device import DeviceFingerprint, describe_device
from nas.executors.asking import asked
from nas.executors.attempts import (
    EvaluationTimeoutError,
    attempt,
    is_final,
    sentence,
    time_limit,
)
from nas.executors.base import (
    TRIES,
    Answered,
    Executor,
    ExecutorSettings,
    ExternalSource,
    Failure,
    Meter,
    Outcome,
    Source,
)
from nas.objectives import timed_workload
from nas.request.spec import SearchSpec
from nas.run.events import Event, Note
from search_spaces.architecture import Architecture
from search_spaces.genotypes import Network

if TYPE_CHECKING:
    from latency.workload import Mode
    from nas.profiling.device_profile import DeviceProfile
    from nas.run.opened import OpenedRun
    from supernet.inheritance.local import LocalReport
    from supernet.training.loop import EpochReport


class LocalExecutor(Executor):
    """See the module."""

    def __init__(self, settings: ExecutorSettings | None = None) -> None:
        super().__init__(settings or ExecutorSettings())

    def evaluate(self, source: Source, networks: Sequence[Architecture]) -> Iterator[Outcome]:
        """See `Executor.evaluate`."""
        from supernet.threads import each_with  # imports torch

        source.prepare()
        outcomes = (self._outcome(source, network) for network in networks)
        yield from each_with(source.spec.budget.supernet.threads, outcomes)

    def _outcome(self, source: Source, network: Architecture) -> Outcome:
        for tries in range(1, TRIES + 1):
            outcome = self._attempt(source, network, tries)
            if is_final(outcome):
                break
        return outcome

    def _attempt(self, source: Source, network: Architecture, tries: int) -> Outcome:
        try:
            with time_limit(self.settings.timeout_s):
                return attempt(source.quality, network, tries)
        except EvaluationTimeoutError as error:  # it came when the attempt had just ended
            return Failure("timeout", sentence(error), tries)

    def ask(self, source: ExternalSource, networks: Sequence[Network]) -> Iterator[list[Answered]]:
        """See `Executor.ask`: as many at once as the evaluator takes."""
        evaluator, wanted = source.evaluator, source.spec.costs
        assert evaluator is not None
        place = 0
        questions = source.questions(networks)
        for outcomes in asked(evaluator, questions, wanted, self.settings.timeout_s):
            yield list(enumerate(outcomes, place))
            place += len(outcomes)

    def train(self, run: OpenedRun) -> Iterator[EpochReport]:
        """See `Executor.train`."""
        from nas.run.supernet_training import supernet_trainer  # imports torch

        yield from supernet_trainer(run).run()

    def distil(self, run: OpenedRun) -> Iterator[LocalReport]:
        """See `Executor.distil`: all layers in one pass, or part after part as they were begun.

        Updates are then counted over all parts.
        """
        from nas.run.layer_distillation import parts_left, teach  # imports torch
        from supernet.threads import each_with

        threads, parts = run.spec.budget.supernet.threads, parts_left(run, 1)
        for place, layers in enumerate(parts):
            for report in each_with(threads, teach(run, layers, run.spec.device)):
                done, whole = place * report.updates + report.update, len(parts) * report.updates
                yield replace(report, update=done, updates=whole)

    def retrain(
        self, run: OpenedRun, ids: Sequence[str], share: float | None = None
    ) -> Iterator[Event]:
        """See `Executor.retrain`."""
        from nas.executors.retraining.stage import train_part, without_tuner  # imports torch

        if share is None:
            yield from without_tuner(run, ids)
            return
        for network_id in ids:
            for event in train_part(run, network_id, share):
                if not isinstance(event, Note):  # the stage that halves keeps these
                    run.folder.log(event)
                yield event

    def check(self, spec: SearchSpec) -> None:
        """See `Executor.check`."""
        describe_device(spec.device)

    def device(self, spec: SearchSpec) -> DeviceFingerprint:
        """See `Executor.device`: this machine's."""
        return describe_device(spec.device)

    def meter(
        self, spec: SearchSpec, device_profile: DeviceProfile | None, mode: Mode | None = None
    ) -> Meter:
        """See `Executor.meter`: this machine, which does nothing else meanwhile."""
        from nas.profiling.latency_meter import LatencyMeter  # imports torch

        return LatencyMeter(spec, device_profile, mode)

    def measure(self, spec: SearchSpec, name: str, network: Architecture) -> float:
        """See `Executor.measure`."""
        from nas.profiling.timed_work import network_cost  # imports torch

        workload = timed_workload(spec.space, None)
        return network_cost(name, spec.space, network, workload, spec.device)

    def release(self) -> None:
        """See `Executor.release`: nothing is held but what the run itself has loaded."""
