"""The stages of a search, each described once.

The order of work, what resuming looks at, the timelines of command, report and dashboard, and the
list of files that the report ends with follow from `SEARCH_STAGES`. What a stage does is the
function ``work`` of the module of `nas.stages` that is named like it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from nas.objectives import LATENCY, MEMORY, OBJECTIVES
from nas.objectives.decoding import DECODE, PREFILL
from nas.request.spec import SearchSpec
from nas.run.layout import (
    BASELINE_FILE,
    BASELINES_FILE,
    CONTEXTS_FILE,
    DATA_FILE,
    DISTIL_CHECKPOINTS,
    DISTILLED_ERRORS_FILE,
    DISTILLED_FILE,
    EXCHANGES_FILE,
    FRONT_FILE,
    HALVING_FILE,
    HISTORY_FILE,
    HOLDING_FILE,
    IMPORTANCES_FILE,
    INHERITED_FILE,
    OBSERVATIONS_FILE,
    POPULATION_FILE,
    PROTECTED_FILE,
    PRUNED_SPACE_FILE,
    PRUNING_FILE,
    RANKER_FILE,
    RAY_TRAIN_FOLDER,
    REPORT_CARD_FILE,
    REPORT_FILE,
    SPACE_FILE,
    SUPERNET_FILE,
    VERIFICATION_FILE,
    measured_file,
    predictor_file,
    profile_file,
)
from search_spaces.space import SearchSpace, Slot
from search_spaces.tasks import TASKS

BEST_SUPERNET_FILE = "supernet/best.pt"
STUDY_FILE = "optuna.journal"

# What stages of a single network are called, before its id → what is done to the network.
RETRAIN, SCRATCH, ATTENTION, EXPORT = "retrain-", "scratch-", "attention-", "export-"
TRAINED = RETRAIN.rstrip("-")  # all networks that are trained at the end
TRAINED_LABEL = "Train the winner"
ADDED = ("exchange", "contexts")  # which searches of earlier versions had not
OF_NETWORKS: Mapping[str, str] = {
    RETRAIN: "Retrain",
    SCRATCH: "Train from scratch",
    ATTENTION: "Look into",
    EXPORT: "Export",
}


def _always(_: SearchSpec) -> bool:
    return True


def _begins_with_checkpoint(spec: SearchSpec) -> bool:
    return spec.start is not None


def _times_contexts(spec: SearchSpec) -> bool:
    """Whether it asks for a time, here, of networks that go on with what a checkpoint's do."""
    asks = _begins_with_checkpoint(spec) and bool(spec.timed) and spec.device_profile is None
    return asks and TASKS[spec.space.task].continues


def kinds_to_exchange(space: SearchSpace) -> tuple[Slot, ...]:
    """The places of a space where several kinds of attention are offered."""
    return tuple(
        slot for slot in space.slots if slot.gene.endswith("attention") and len(slot.choices) > 1
    )


@dataclass(frozen=True)
class Stage:
    """One step of a search.

    Attributes:
        name: as in ``stages/<name>.json``.
        label: for people.
        needs: earlier stages whose files it reads, as far as a search has them.
        outputs: files it writes, relative to the run folder → what is in them; they are all there
            when it ends.
        applies: whether a search has it.
        scratch: files and folders it leaves only while it is unfinished.
        reads: files it reads, where they are there, beside those of `needs`: the user's, and such
            as earlier versions did not count.
        uncounted: those of `needs` that earlier versions did not count; what these recorded holds.
        external: whether a search has it whose networks an evaluator of others knows.
    """

    name: str
    label: str
    needs: tuple[str, ...]
    outputs: Mapping[str, str]
    applies: Callable[[SearchSpec], bool] = _always
    scratch: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    external: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that goes when the stage has to start anew."""
        return (*self.outputs, *self.scratch)


def _timed(name: str, label: str, what: str) -> Stage:
    """The stage that times a sample of networks for an objective."""
    stage = OBJECTIVES[name].stage
    return Stage(
        stage,
        label,
        ("declare",),
        {
            profile_file(stage): f"times of sampled networks{what}",
            predictor_file(stage): f"the {stage} predictor fitted to them",
        },
        lambda spec: spec.needs(name),
    )


# Those of them that objectives name, whose predictors later stages read.
PREDICTING = tuple(dict.fromkeys(one.stage for one in OBJECTIVES.values() if one.stage))

SEARCH_STAGES = (
    Stage(
        "declare",
        "Check the request",
        (),
        {SPACE_FILE: "the space", DATA_FILE: "sizes and checksum of the data"},
        external=True,
    ),
    _timed(LATENCY, "Time sampled networks", ""),
    _timed(DECODE.name, "Time a token of sampled networks", ", a token behind a context"),
    _timed(PREFILL.name, "Time a prompt of sampled networks", ", reading a context in one call"),
    Stage(
        "memory",
        "Measure peak memory",
        ("declare",),
        {
            measured_file("memory"): "peak memory of sampled networks",
            predictor_file("memory"): "the predictor of peak memory fitted to it",
        },
        lambda spec: spec.asks_for(MEMORY),
    ),
    Stage(
        "inherit",
        "Take over the checkpoint",
        ("declare",),
        {
            INHERITED_FILE: "the checkpoint's weights, as a supernet has them",
            BASELINE_FILE: "what the checkpoint itself is worth",
        },
        _begins_with_checkpoint,
    ),
    Stage(
        "distil",
        "Distil kinds of attention",
        ("inherit",),
        {
            DISTILLED_FILE: "the same, with each kind of attention taught by its layer",
            DISTILLED_ERRORS_FILE: "how far each kind is from its layer",
        },
        lambda spec: _begins_with_checkpoint(spec) and bool(kinds_to_exchange(spec.space)),
        scratch=(DISTIL_CHECKPOINTS,),
    ),
    Stage(
        "supernet",
        "Train the supernet",
        ("declare", "inherit", "distil"),
        {
            SUPERNET_FILE: "the supernet's weights",
            BEST_SUPERNET_FILE: "those with the lowest validation loss",
            HISTORY_FILE: "how its training went",
        },
        lambda spec: not spec.trains_alone,
        scratch=(RAY_TRAIN_FOLDER,),
    ),
    Stage(
        "observe",
        "Observe networks",
        ("supernet", *PREDICTING),
        {OBSERVATIONS_FILE: "what observed networks are worth on the validation split"},
        external=True,
    ),
    Stage(
        "rank",
        "Fit the ranker",
        ("observe",),
        {
            RANKER_FILE: "the ranker",
            REPORT_CARD_FILE: "how well it orders networks it has not seen",
            IMPORTANCES_FILE: "what moves its predictions",
        },
        external=True,
    ),
    Stage(
        "prune",
        "Prune the space",
        ("rank", "observe", *PREDICTING),
        {PRUNED_SPACE_FILE: "the space that was searched", PRUNING_FILE: "what was cut and why"},
        lambda spec: spec.ranks,
        reads=(PROTECTED_FILE,),
        external=True,
    ),
    Stage(
        "evolve",
        "Evolve on predictions",
        ("prune", "rank", *PREDICTING),
        {POPULATION_FILE: "every network that evolution scored"},
        lambda spec: spec.ranks,
        external=True,
    ),
    Stage(
        "verify",
        "Measure the best",
        ("evolve", "observe", "supernet"),
        {
            VERIFICATION_FILE: "networks measured after the evolution",
            HOLDING_FILE: "where a time decides: the front, timed in several sessions",
        },
        external=True,
    ),
    Stage(
        "baseline",
        "Choose what to compare with",
        ("verify", "observe", "rank", *PREDICTING),
        {BASELINES_FILE: "networks to hold the winner against, with their costs"},
        lambda spec: spec.baseline is not None,
    ),
    Stage(
        "front",
        "Find the Pareto front",
        ("verify", "observe", "rank", *PREDICTING, "baseline"),
        {FRONT_FILE: "the result: the front"},
        reads=(BASELINE_FILE,),
        external=True,
    ),
    Stage(
        "exchange",
        "Exchange kinds of attention",
        ("front", "verify", "observe", "supernet"),
        {EXCHANGES_FILE: "the picked network with one layer of another kind, layer by layer"},
        lambda spec: bool(kinds_to_exchange(spec.space)),
    ),
    Stage(
        "contexts",
        "Time by length of the prompt",
        ("front",),
        {CONTEXTS_FILE: "how long both take for prompts of several lengths, and a token behind"},
        _times_contexts,
    ),
    Stage(
        "halve",
        "Train candidates side by side",
        ("front",),
        {HALVING_FILE: "losses of the candidates at every stop, and the winner"},
        lambda spec: spec.retrain > 1,
    ),
)
# Written anew after a search and after whatever is done with its networks; `needs` follows then.
REPORT = Stage(
    "report",
    "Write the report",
    (),
    {REPORT_FILE: "all of it on one page", STUDY_FILE: "everything measured, as a study of Optuna"},
)


def search_stages(spec: SearchSpec) -> list[Stage]:
    """The stages that a search really has, from the request to the front, in order.

    Nothing is timed or measured that nobody asks for, and only searchers that rank prune the space
    and evolve in it. Networks that an evaluator knows are neither timed nor trained.
    """
    if spec.evaluator is not None:
        return [stage for stage in SEARCH_STAGES if stage.external and stage.applies(spec)]
    return [stage for stage in SEARCH_STAGES if stage.applies(spec)]


def stages_of_run(spec: SearchSpec, ended: Collection[str]) -> list[Stage]:
    """The stages of a run, of which some have ended, in order.

    A run that trained a network before there were all of the stages of `ADDED` came to its end
    without them.
    """
    trained = any(name.startswith(RETRAIN) for name in ended)
    left_out = {name for name in ADDED if trained and name not in ended}
    return [stage for stage in search_stages(spec) if stage.name not in left_out]


def network_stage(
    prefix: str,
    network_id: str,
    needs: tuple[str, ...],
    outputs: Mapping[str, str],
    scratch: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    uncounted: tuple[str, ...] = (),
) -> Stage:
    """A stage of a single network, which has its own record; see `OF_NETWORKS` and `Stage`."""
    name = prefix + network_id
    label = stage_label(name)
    return Stage(name, label, needs, outputs, scratch=scratch, reads=reads, uncounted=uncounted)


def stage_label(name: str) -> str:
    """What people call a stage of a search, or of one of its networks."""
    for prefix, word in OF_NETWORKS.items():
        if name.startswith(prefix):
            return f"{word} {name.removeprefix(prefix)}"
    if name == TRAINED:
        return TRAINED_LABEL
    return next(stage.label for stage in (*SEARCH_STAGES, REPORT) if stage.name == name)
