"""Everything that is known of a run; what it has not reached is None or empty."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latency.predictor import PredictorReport
from latency.timings import TimingJournal
from nas.objectives import QUALITY, Quality
from nas.profiling.device_profile import DeviceProfile
from nas.request.protected_choices import ProtectedChoices
from nas.request.spec import SearchSpec
from nas.results.baselines import (
    Comparison,
    MainScore,
    comparisons,
    trained_by_search,
    trained_winner,
)
from nas.results.failures import FailedNetwork
from nas.results.retrained_order import RetrainedOrder, retrained_order
from nas.run.duration import Duration, ToldAndTaken, compare
from nas.run.omni_views import OmniViews
from nas.run.stages import RETRAIN, stages_of_run
from nas.search.front import Front, FrontEntry, winner
from nas.search.pruning.cuts import Cut
from nas.search.pruning.prune import Kept
from nas.search.ranking.report_card import ReportCard
from nas.search.sensitivity import GeneEffects
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.space import SearchSpace


@dataclass(frozen=True, slots=True)
class Stretch:
    """Tokens of the validation split at like distances from what tells them, and their loss.

    Attributes:
        first: the shortest distance, in tokens.
        last: the longest one; None for any.
        tokens: how many they are.
        nats: their mean loss.
    """

    first: int
    last: int | None
    tokens: int
    nats: float


# Left to do where a pick that nothing on the front meets keeps a search from training any.
UNPICKED = "retrain a network of the front, none of which is what was picked"
DISTANCES = ("repeats", "positions")
ByDistance = Mapping[str, tuple[Stretch, ...]]
"""Each of `DISTANCES`, see `supernet.tasks.base.Task.by_distance`; empty where it is not told."""


@dataclass(frozen=True)
class Retrained:
    """A trained network; see ``retrained/<id>/result.json`` and ``from_scratch.json``.

    Attributes:
        id: of the network.
        architecture: the network.
        headline: the score that its task is known by: ``accuracy``, ``bleu``, ``perplexity`` or
            ``similarity``.
        test_scores: on the test split, by name.
        valid_scores: the same on the validation split.
        epochs: passes over the training split.
        seed: of the training.
        by_distance: its loss by distance, where the search began with a checkpoint.
        loss_error: standard error of its validation loss, examples being what is drawn at random;
            None where that is not known.
        asked_epochs: that were asked for it in place of the run's, see `nas retrain --epochs`;
            None where none were, and it trained as long as others of the run.
    """

    id: str
    architecture: Architecture
    headline: str
    test_scores: Mapping[str, float]
    valid_scores: Mapping[str, float]
    epochs: int
    seed: int
    by_distance: ByDistance = field(default_factory=dict)
    loss_error: float | None = None
    asked_epochs: int | None = None


@dataclass(frozen=True)
class ContextTimes:
    """How long networks take behind a context, timed in turn, see `nas.stages.contexts`.

    Attributes:
        mode: ``prefill``, which reads it, or ``decode``, a token behind it.
        context: positions.
        ms: id of a network → median milliseconds.
    """

    mode: str
    context: int
    ms: Mapping[str, float]


@dataclass(frozen=True)
class Exchange:
    """A network in which one layer's attention is of another kind, see `nas.stages.exchange`.

    Attributes:
        of: id of the network that it was made from.
        slot: the place, such as ``decoder.2.self_attention``.
        kind: that stands there instead.
        values: quality as networks were observed and costs, by objective; without quality where
            it could not be evaluated.
    """

    of: str
    slot: str
    kind: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class Origin:
    """The checkpoint that a search began with; see ``inherited/`` and ``distilled/``.

    Attributes:
        name: of its folder.
        entry: its network, with its own weights, and what that costs.
        layer_order: numbers of its layers; a network of fewer has the first so many of them.
        errors: ``LAYER.KIND`` → how far that kind is from what the layer says, once taught by it.
        by_distance: its loss by distance, of a language model.
    """

    name: str
    entry: FrontEntry
    layer_order: tuple[int, ...]
    errors: Mapping[str, float]
    by_distance: ByDistance = field(default_factory=dict)


@dataclass(frozen=True)
class Epoch:
    """One epoch of the supernet's training; the last two only where the probes were measured."""

    epoch: int
    train_loss: float
    probe_loss: float | None = None
    tau: float | None = None


@dataclass(frozen=True)
class PruningAudit:
    """What pruning did; see `nas.search.pruning.prune.PrunedSpace`."""

    size: int
    refused: str | None
    cuts: tuple[Cut, ...]
    kept: tuple[Kept, ...]
    protected: ProtectedChoices


@dataclass(frozen=True)
class RunContents:
    """A run, read.

    Attributes:
        name: of the folder.
        spec: what was asked for.
        sizes: split → number of examples.
        profiles: timed objective → what was timed for its predictor, and on what device.
        device_profile: the device profile that the search was given.
        predictors: timed objective → how its predictor was chosen.
        history: of the supernet's training, if there was one.
        observed: networks with a measured quality; a latency may be predicted.
        population: the best networks of the evolution, by prediction.
        verified: networks that were measured after the evolution.
        failed: networks that could not be evaluated.
        front: the result.
        exchanges: the picked network with one layer's kind of attention exchanged.
        silenced: the same without what one layer's attention adds.
        card: of the ranker.
        importances: feature → share, largest first.
        features: objective → the genes that decide it most; empty before there is a ranker.
        audit: what pruning did.
        retrained: networks trained from scratch, or fine-tuned where it began with a checkpoint.
        from_scratch: those that were trained from scratch then, for comparison.
        views: networks whose omni layers were looked into.
        seconds: stage → its time.
        origin: the checkpoint that it began with; None without one, and until it is taken over.
        halving_winner: id of the network that won in the end, see `nas.search.front.read_winner`.
        halving_left: id of the candidate that successive halving left.
        duration: what was told of it before it began; None where nothing was.
        context_times: of the checkpoint and the picked network, by length.
    """

    name: str
    spec: SearchSpec
    sizes: Mapping[str, int]
    profiles: Mapping[str, TimingJournal]
    device_profile: DeviceProfile | None
    predictors: Mapping[str, PredictorReport]
    history: tuple[Epoch, ...]
    observed: tuple[FrontEntry, ...]
    population: tuple[FrontEntry, ...]
    verified: tuple[FrontEntry, ...]
    failed: tuple[FailedNetwork, ...]
    front: Front | None
    exchanges: tuple[Exchange, ...]
    silenced: tuple[Exchange, ...]
    card: ReportCard | None
    importances: Mapping[str, float]
    features: Mapping[str, GeneEffects]
    audit: PruningAudit | None
    retrained: tuple[Retrained, ...]
    views: tuple[OmniViews, ...]
    seconds: Mapping[str, float]
    origin: Origin | None
    halving_winner: str | None = None
    halving_left: str | None = None
    duration: Duration | None = None
    from_scratch: tuple[Retrained, ...] = ()
    context_times: tuple[ContextTimes, ...] = ()

    @property
    def space(self) -> SearchSpace:
        """The whole space, of this project's own networks."""
        return self.spec.space

    @property
    def quality(self) -> Quality:
        """What quality is."""
        return self.spec.judged

    @property
    def by_loss(self) -> bool:
        """Whether quality is the validation loss, as it usually is."""
        return self.spec.quality == "loss" and self.spec.evaluator is None

    @property
    def both_stacks(self) -> bool:
        """Whether gene names need to say which stack they belong to."""
        return self.spec.evaluator is None and len(self.space.stacks) > 1

    @property
    def costs(self) -> list[str]:
        """The costs that were asked for, as objective or limit."""
        names = [*self.spec.objectives, *self.spec.limits]
        return [name for name in dict.fromkeys(names) if name != QUALITY]

    @property
    def picked(self) -> FrontEntry | None:
        """The network that the request chooses from the front, if it can be chosen."""
        if self.front is None or not self.front.entries:
            return None
        try:
            return winner(self.front, self.spec.pick, self.halving_winner)
        except UsageError:
            return None

    def network(self, identity: str) -> FrontEntry | None:
        """A network by its id: from the front, else any other that is known of the run."""
        front = () if self.front is None else self.front.entries
        beside = [one.baseline.entry for one in self.comparisons]  # whose quality is not measured
        begun = () if self.origin is None else (self.origin.entry,)
        for entries in (front, self.verified, self.observed, self.population, beside, begun):
            for entry in entries:
                if entry.id == identity:
                    return entry
        return None

    @property
    def comparisons(self) -> list[Comparison]:
        """The picked network beside the baselines; none before there is a front."""
        if self.front is None or self.picked is None:
            return []
        return comparisons(self.front, self.picked, self.main_scores, bool(self.spec.limits))

    @property
    def main_scores(self) -> dict[str, MainScore]:
        """Id of a network that is trained → its score on the test split."""
        return {
            one.id: MainScore(one.headline, one.test_scores[one.headline], one.asked_epochs)
            for one in self.retrained
        }

    @property
    def trained_winner(self) -> FrontEntry | None:
        """The picked network, its quality that of its training; None where that is not known."""
        return trained_winner(self.picked, self._valid_scores, self.quality)

    @property
    def retrained_order(self) -> RetrainedOrder | None:
        """The order of the front's networks in the search and once trained, if enough are."""
        if self.front is None or self.spec.evaluator is not None:
            return None
        return retrained_order(self.front, self.quality, self._valid_scores, self._asked_epochs)

    @property
    def told(self) -> ToldAndTaken:
        """How long it was to take, beside how long it took."""
        picked = None if self.picked is None else self.picked.id
        trained = trained_by_search(self.front, self.halving_left, picked)
        return compare(self.duration or Duration(), self.seconds, trained, self._asked_epochs)

    @property
    def _valid_scores(self) -> dict[str, Mapping[str, float]]:
        """Id of a network → its scores on the validation split."""
        return {one.id: one.valid_scores for one in self.retrained}

    @property
    def _asked_epochs(self) -> dict[str, int]:
        """Id of a network → the epochs that were asked for it in place of the run's."""
        return {one.id: one.asked_epochs for one in self.retrained if one.asked_epochs}

    @property
    def unfinished(self) -> list[str]:
        """What is left to be done, in words and in order."""
        left = [
            stage.label[0].lower() + stage.label[1:]
            for stage in stages_of_run(self.spec, self.seconds)
            if stage.name not in self.seconds
        ]
        picked = self.picked
        if self.spec.evaluator is not None:
            return left
        if self.front is not None and picked is None:
            trained = any(RETRAIN + one.id in self.seconds for one in self.front.entries)
            return left if trained else [*left, UNPICKED]
        if picked is None or RETRAIN + picked.id not in self.seconds:
            left.append("retrain the picked network")
        beside = () if self.front is None else self.front.baselines
        if any(RETRAIN + one.entry.id not in self.seconds for one in beside):
            left.append("train what it is compared with")
        return left
