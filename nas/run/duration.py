"""How long a search will take, told before it, and how wrong that was.

Each stage says what it does (`nas.stages.<name>.plan`): how often something is done whose seconds a
calibration measures on this machine (`nas.stages.calibration`). Their product is what is told. The
run folder keeps it, and what the stages then took stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from nas.objectives import OBJECTIVES
from nas.request.spec import SearchSpec
from nas.run.folder import RunFolder
from nas.run.layout import DURATION_FILE
from nas.run.stages import RETRAIN, TRAINED
from search_spaces.errors import DamagedRunError
from search_spaces.json_text import UNREADABLE, read_as
from supernet.training_settings import TrainingSettings, epoch_updates, planned_updates

# What a calibration measures, in seconds.
UPDATE = "update of the supernet"
DISTIL_UPDATE = "update of the kinds of attention"
OWN_UPDATE = "update of a drawn network"
PLAIN_UPDATE = "update of the baseline"
CHOSEN_UPDATE = "update of a chosen network"
CHECK = "loss of a network"
EVALUATION = "quality of a network"
SCORE = "scores of a trained network"
TIMING = "timing of a network in a session"
MEASUREMENT = "measurement of a network"
FIT = "fit of a ranker"
GENERATION = "generation of an evolution"
SECOND = "second"  # of what takes equally long everywhere: pauses between timings
# No seconds: 1 where the speed of the machine comes and goes, otherwise 0.
UNEVEN = "unevenness of the machine"


@dataclass(frozen=True, slots=True)
class Part:
    """Something that a stage does many times.

    Attributes:
        unit: what a calibration measures.
        count: how often.
        pieces: into which workers can share it out; 1 for what one process does.
        most: how often at most while other work disturbs it; None for no more often.
        uneven: how often where the speed of the machine comes and goes; None for no more often.
    """

    unit: str
    count: float
    pieces: int = 1
    most: float | None = None
    uneven: float | None = None

    def times(self, unevenness: float) -> float:
        """How often it is done on a machine that is more or less uneven, 0 to 1."""
        more = 0.0 if self.uneven is None else self.uneven - self.count
        return self.count + unevenness * more


@dataclass(frozen=True)
class Plan:
    """What a stage does.

    Attributes:
        what: in words; of what takes no time, or is not told, the reason.
        parts: of it; empty for what takes no time worth telling.
        told: whether its time can be told.
    """

    what: str
    parts: tuple[Part, ...] = ()
    told: bool = True

    @property
    def units(self) -> Iterator[str]:
        """What a calibration measures for it."""
        for part in self.parts:
            yield part.unit
            if part.uneven is not None:
                yield UNEVEN

    def seconds(self, calibration: Mapping[str, float], workers: int = 1) -> float | None:
        """How long it takes so many workers; None where that cannot be told."""
        unevenness = calibration.get(UNEVEN, 0.0)
        return self._sum([one.times(unevenness) for one in self.parts], calibration, workers)

    def most_seconds(self, calibration: Mapping[str, float], workers: int = 1) -> float | None:
        """The same at most, while other work disturbs it."""
        counts = [one.count if one.most is None else one.most for one in self.parts]
        return self._sum(counts, calibration, workers)

    def _sum(
        self, counts: Sequence[float], calibration: Mapping[str, float], workers: int
    ) -> float | None:
        if not self.told:
            return None
        pairs = zip(self.parts, counts, strict=True)
        return sum(calibration[one.unit] * count / _shared(one, workers) for one, count in pairs)


def _shared(part: Part, workers: int) -> float:
    """How many workers a part keeps busy on average: the last of its rounds may not need all."""
    return part.pieces / math.ceil(part.pieces / workers)


class Training(NamedTuple):
    """How much a training does.

    Attributes:
        epochs: that it has.
        updates: of the weights.
        checks: of the probes.
    """

    epochs: int
    updates: int
    checks: int

    @classmethod
    def of(cls, settings: TrainingSettings, batches: int) -> Training:
        """The whole training with settings on data of so many batches a pass."""
        updates = planned_updates(settings, batches)
        epochs = math.ceil(updates / epoch_updates(settings, batches))
        return cls(epochs, updates, math.ceil(epochs / settings.check_every))

    @property
    def text(self) -> str:
        """In words."""
        return f"{counted(self.epochs, 'epoch')}, {counted(self.updates, 'update')}"


@dataclass(frozen=True)
class Asked:
    """What a search is asked for, as far as it decides how much there is to do.

    Attributes:
        spec: the request.
        batches: of a pass over the training split, as often as settings ask for.
        untimed: timed objective → networks of the sample whose time is not known on this device.
        new_units: timed objectives that nothing was timed for yet on this device.
        watched: whether it is known how fast this device is undisturbed.
        elsewhere: whether costs are predicted for another device and measured nowhere.
        test_share: examples of the whole validation split for each that networks are compared on.
    """

    spec: SearchSpec
    batches: Callable[[TrainingSettings], int]
    untimed: Mapping[str, int] = field(default_factory=dict)
    new_units: frozenset[str] = frozenset()
    watched: bool = False
    elsewhere: bool = False
    test_share: float = 1.0

    @property
    def timed(self) -> tuple[str, ...]:
        """The objectives for which the best networks are timed."""
        return () if self.elsewhere else self.spec.timed

    @property
    def measured(self) -> tuple[str, ...]:
        """The objectives for which the best networks are measured."""
        wanted = [one.name for one in OBJECTIVES.values() if one.measure is not None]
        return () if self.elsewhere else tuple(filter(self.spec.needs, wanted))

    def training(self, settings: TrainingSettings) -> Training:
        """How much a training does."""
        return Training.of(settings, self.batches(settings))


def counted(number: float, one: str, several: str = "") -> str:
    """``1 update``, ``1,380 updates``."""
    return f"{number:,.0f} {one if number == 1 else several or one + 's'}"


def not_told(labels: Iterable[str]) -> str:
    """``; not told: Take over the checkpoint``, of stages behind a sum that lacks them."""
    named = ", ".join(labels)
    return f"; not told: {named}" if named else ""


@dataclass(frozen=True, slots=True)
class StageDuration:
    """What is told of a stage.

    Attributes:
        stage: its name; `TRAINED` for all networks that are trained at the end.
        label: for people.
        what: it does.
        seconds: that it will take; None where that is not told.
        most_seconds: that it may take while other work disturbs it; None where that is not told.
    """

    stage: str
    label: str
    what: str
    seconds: float | None
    most_seconds: float | None = None


@dataclass(frozen=True)
class Duration:
    """What was told of a whole search before it.

    Attributes:
        stages: in order, those behind the check of the request.
        calibration: what was measured → seconds, and `UNEVEN`.
        calibrated_s: seconds that measuring took.
        workers: that share the work.
        reason: why nothing is told; empty otherwise.
        busy: what kept the machine busy while it was told; empty on a machine at rest.
    """

    stages: tuple[StageDuration, ...] = ()
    calibration: Mapping[str, float] = field(default_factory=dict)
    calibrated_s: float = 0.0
    workers: int = 1
    reason: str = ""
    busy: str = ""

    @property
    def seconds(self) -> float:
        """Of all stages that are told."""
        return sum(one.seconds or 0.0 for one in self.stages)

    @property
    def about(self) -> str:
        """What it was told from."""
        shared = f", for {self.workers:,} workers" if self.workers > 1 else ""
        uneven = ", whose speed comes and goes" if self.calibration.get(UNEVEN) else ""
        return f"from {self.calibrated_s:.1f} s of calibration on this machine{uneven}{shared}"

    @property
    def warning(self) -> str:
        """A sentence on stages that a busy machine makes longer; empty where it makes none."""
        late = [one for one in self.stages if (one.most_seconds or 0.0) > (one.seconds or 0.0)]
        told = sum(one.seconds or 0.0 for one in late)
        if not self.busy or not told:
            return ""
        times = sum(one.most_seconds or 0.0 for one in late) / told
        return (
            f"the machine is busy now ({self.busy}): what times networks "
            f"({', '.join(one.label for one in late)}) may take up to {times:,.0f} times as long, "
            "since timings beside other work are repeated and waited for, and all else is told as "
            "slow as it is now; end the other work, or begin when it has ended"
        )

    def left(self, ended: Iterable[str]) -> tuple[StageDuration, ...]:
        """The stages that have not ended."""
        gone = set(ended)
        return tuple(one for one in self.stages if one.stage not in gone)

    def to_json(self) -> dict[str, Any]:
        """As the run folder keeps it."""
        return asdict(self)


def write_duration(folder: RunFolder, duration: Duration) -> None:
    """Keep what was told of a run."""
    folder.write_json(DURATION_FILE, duration.to_json())


def read_duration(folder: RunFolder) -> Duration | None:
    """What was told of a run before it; None where nothing was.

    Raises:
        DamagedRunError: when the file cannot be read.
    """
    if not folder.has(DURATION_FILE):
        return None
    data = folder.read_json(DURATION_FILE)
    try:
        return read_as(Duration, data)
    except UNREADABLE as error:
        raise DamagedRunError(
            f"{folder.path / DURATION_FILE} is damaged ({error}): delete it, no stage reads it"
        ) from error


@dataclass(frozen=True)
class ToldAndTaken:
    """What was told beside what was taken; stages whose time was not told are in neither.

    Attributes:
        told: stage → seconds, of the whole search.
        taken: stage → seconds, of those stages that have ended.
        busy: what kept the machine busy when it was told; empty on a machine at rest.
    """

    told: Mapping[str, float]
    taken: Mapping[str, float]
    busy: str = ""

    def sentence(self, words: Callable[[float], str]) -> str:
        """Told and taken, in words; empty before anything has ended.

        Args:
            words: of seconds.
        """
        told = sum(self.told[stage] for stage in self.taken)
        taken = sum(self.taken.values())
        if not told or not taken:
            return ""
        so_far = "" if self.taken.keys() == self.told.keys() else " for what has ended"
        busy = f"; the machine was busy when it was told: {self.busy}" if self.busy else ""
        times = f"{taken / told:.2f} times"
        return f"told {words(told)}{so_far}, took {words(taken)} ({times}){busy}"


def compare(
    duration: Duration,
    seconds: Mapping[str, float],
    trained: Sequence[str],
    otherwise: Collection[str],
) -> ToldAndTaken:
    """What was told beside what was taken.

    Args:
        duration: that was told.
        seconds: stage → that it took, as far as stages have ended.
        trained: ids of the networks that the search itself trains at the end, which share out what
            was told of them together.
        otherwise: those that were trained for other epochs since, which are in neither.
    """
    told = {one.stage: one.seconds for one in duration.stages if one.seconds is not None}
    if trained and TRAINED in told:
        share = told.pop(TRAINED) / len(trained)
        told |= {RETRAIN + one: share for one in trained if one not in otherwise}
    taken = {stage: seconds[stage] for stage in told if stage in seconds}
    return ToldAndTaken(told, taken, duration.busy)
