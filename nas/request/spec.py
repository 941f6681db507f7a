"""A search, as people ask for it and as a run keeps it: `SearchRequest` and `SearchSpec`.

Each field stands here once, with type, range, default, help and example. The options of `nas
search` and `nas submit`, the REST body, the dashboard's form and the reference page are derived
from the request; `nas.request.resolve` makes the spec of it, which is ``spec.json``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from nas.objectives import (
    COSTS,
    EXTERNAL_QUALITY,
    LATENCY,
    OBJECTIVES,
    QUALITIES,
    QUALITY,
    TIMED,
    Objective,
    Quality,
    QualityMetric,
    check_cost_names,
    objective,
)
from nas.request import picks
from nas.request.fields import (
    FROZEN,
    LINE,
    NUMERIC,
    Shown,
    as_value_error,
    checked,
    first_problem,
    gene_choices,
    names,
    pairs,
)
from nas.request.halving import CANDIDATES, MOST_CANDIDATES, trainings
from nas.request.presets import Budget, check_setting
from nas.request.protected_choices import ALL, NONE, checked_protected, typed_choices
from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from search_spaces.genes import parse_genes
from search_spaces.genotypes import GenotypeSpace
from search_spaces.loading import parse_space
from search_spaces.space import Choice, SearchSpace
from search_spaces.wording import mark

SearcherName = Literal["rank-evolve", "ranknas", "nsga2", "tpe", "random"]
PresetName = Literal["smoke", "quick", "standard", "paper"]
Device = Literal["cpu", "cuda"]
DEFAULT_HOURS, MOST_HOURS = 1.0, 10_000.0
"""For which a space is made where nothing is said, and at most."""
FAMILIES = ("bert", "gpt2", "llama", "mistral", "qwen2", "qwen3", "vit")
"""The families of checkpoints, as `supernet.pretrained.families`, which brings torch along."""
MAX_TOML = 100_000
SYNTHETIC = "synthetic"
SPACE_TOML = "the run's space.toml"
Name = Annotated[str, Field(max_length=100)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = float | Whole | Name | bool | None
PLAIN: Literal["plain"] = "plain"
CHECKPOINT: Literal["checkpoint"] = "checkpoint"
BEGIN = f"begin with a checkpoint, with {mark('start')}"
CANDIDATES_HELP = (
    "How many networks of the front begin that training: the picked one and those whose quality is "
    "nearest to its own. The better half goes on at every stop, and the last one left is the "
    f"winner (successive halving): 3 cost {trainings(3):.2g} trainings, 8 cost {trainings(8):.2g}. "
    "Where nothing is said of what is picked, a plain network of the baseline wins that is better "
    "in the end, or as good and no dearer."
)
DETERMINISTIC = ("supernet.deterministic", "retrain.deterministic")
"""The settings that ``deterministic`` stands for."""
Choices = dict[Name, Annotated[list[Whole | Name], Field(min_length=1, max_length=200)]]


def _objectives(given: tuple[str, ...], evaluator: str | None) -> tuple[str, ...]:
    if evaluator is not None:
        check_cost_names([name for name in given if name != QUALITY])
    for name in given:
        if evaluator is None and name not in OBJECTIVES:
            raise UsageError(f"unknown objective {name!r}; known are {', '.join(OBJECTIVES)}")
    if len(set(given)) != len(given):
        raise UsageError(f"an objective is named twice in {','.join(given)}")
    if QUALITY not in given or len(given) < 2:
        known = "cost that the evaluator tells" if evaluator else f"of {', '.join(COSTS)}"
        raise UsageError(f"objectives need quality and at least one {known}")
    if evaluator is not None:
        return (QUALITY, *(name for name in given if name != QUALITY))
    return tuple(name for name in OBJECTIVES if name in given)  # quality comes first


def _limits(
    limits: dict[str, float], evaluator: str | None, objectives: tuple[str, ...]
) -> dict[str, float]:
    if evaluator is not None:
        check_cost_names([*limits, *(name for name in objectives if name != QUALITY)])
    for name, value in limits.items():
        if evaluator is None and name not in COSTS:
            raise UsageError(f"no limit can be set on {name!r}; known are {', '.join(COSTS)}")
        few = evaluator is None and OBJECTIVES[name].few
        if value < 0 or (value == 0 and not few):
            least = "at least" if few else "above"
            raise UsageError(f"the limit {name}={value:g} must be {least} 0")
    return dict(sorted(limits.items()))


_COMPARED = re.compile(r"\s*([^<>=\s]+)\s*([<>])=?\s*(\S+)\s*")


def limit_pairs(called: str, texts: Sequence[str]) -> dict[str, str]:
    """``["latency_ms=5"]`` → ``{"latency_ms": "5"}``.

    Raises:
        UsageError: for another form, such as a comparison.
    """
    for text in texts:
        if compared := _COMPARED.fullmatch(text):
            name, sign, value = compared.groups()
            smallest = name in COSTS and OBJECTIVES[name].maximise
            if (sign == ">") == smallest:
                raise UsageError(f"{called} takes NAME=VALUE: write {name}={value}")
            raise UsageError(
                f"{called} {name}={value} would be the {'smallest' if smallest else 'largest'} "
                f"value of {name} that is allowed; that it be at {'most' if smallest else 'least'} "
                f"{value} cannot be asked for"
            )
    return pairs(called, texts)


class SearchTerms(BaseModel):
    """What a search looks for and how: the same in a request and in the spec made of it."""

    model_config = FROZEN

    preset: Annotated[
        PresetName,
        Field(description="How much to do; every number of it can be overridden."),
        Shown("Preset"),
    ] = "quick"
    evaluator: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern=LINE,
            description="Who tells what networks of a space of genes are worth: a Python object "
            "(package.module:Name), a table (table:FILE:COLUMN, with the quality's column; "
            "-COLUMN where more is better) or a command ('command:PROGRAM ARGUMENT …'). On a "
            "server the name of one that its administrator registered.",
            examples=["my_package.supernet:Evaluator", "table:networks.csv:loss"],
        ),
        Shown(
            metavar="NAME",
            usual="none: networks are trained and measured",
            apart="spaces of genes are sent by nas submit",
        ),
    ] = None
    objectives: Annotated[
        tuple[Name, ...],
        Field(
            max_length=10,
            description=f"What to optimise: quality, and any of {', '.join(COSTS)}, in this "
            "order however they are given, the first being what cheapest goes by; with an "
            "evaluator any costs that it tells.",
            examples=[[QUALITY, "flops"]],
        ),
        Shown(metavar="NAME,NAME", read=names, apart="each cost has a box to tick"),
    ] = (QUALITY, LATENCY)
    quality: Annotated[
        QualityMetric,
        Field(
            description="What quality is: the validation loss, the share of right predictions, for "
            "translation BLEU, which takes longer, for language models the loss on tokens that "
            "repeat what stands beyond the window or the divergence from the checkpoint, or for "
            "encoders of texts how well they agree with the checkpoint on which texts are alike, "
            "or nearest."
        ),
        Shown("Quality"),
    ] = "loss"
    limits: Annotated[
        dict[Name, Annotated[float, NUMERIC]],
        Field(
            max_length=10,
            description=f"The largest value of a cost ({', '.join(COSTS)}) that is allowed; of "
            f"{' and '.join(n for n in COSTS if OBJECTIVES[n].maximise)} the smallest.",
            examples=[{"params": 2e5}],
        ),
        Shown(
            metavar="NAME=VALUE",
            read=limit_pairs,
            many=True,
            apart="each cost has a field for it",
        ),
    ] = {}
    searcher: Annotated[
        SearcherName,
        Field(
            description="How networks to evaluate are chosen: by ranking and evolving in rounds, "
            "by doing so once as RankNAS does, or by one of Optuna's samplers, which learn from "
            "observations alone."
        ),
        Shown("Searcher"),
    ] = "rank-evolve"
    device: Annotated[
        Device, Field(description="Where networks are trained and timed."), Shown("Device")
    ] = "cpu"
    seed: Annotated[
        int,
        Field(ge=0, le=2**31 - 1, description="Seed of everything random."),
        NUMERIC,
        Shown("Seed"),
    ] = 0
    pick: Annotated[
        str,
        Field(
            max_length=200,
            description=picks.HELP,
            examples=[*picks.WORDS, "latency_ms<=12,params<=2e5"],
        ),
        Shown("Retrain", metavar=picks.METAVAR),
    ] = picks.BEST
    retrain: Annotated[
        int,
        Field(ge=1, le=MOST_CANDIDATES, description=CANDIDATES_HELP, examples=[CANDIDATES]),
        NUMERIC,
        Shown("Candidates"),
    ] = 1

    @field_validator("evaluator")
    @classmethod
    def _evaluator(cls, name: str | None) -> str | None:
        if name is not None and not name.strip():
            raise ValueError("the name of the evaluator is empty")
        return name

    @field_validator("objectives")
    @classmethod
    def _objectives(cls, given: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        with as_value_error():
            return _objectives(given, info.data.get("evaluator"))

    @field_validator("limits")
    @classmethod
    def _limits(cls, given: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        with as_value_error():
            return _limits(given, info.data.get("evaluator"), info.data.get("objectives", ()))

    @field_validator("pick")
    @classmethod
    def _pick(cls, text: str | None, info: ValidationInfo) -> str | None:
        """A pick can be told wrong before there is a front, also by what is never measured."""
        known = info.data
        if text is None or not {"objectives", "limits", "quality"} <= known.keys():
            return text  # what is wrong with these is told instead
        try:
            asked = {*known["objectives"], *known["limits"]}
            picks.read_pick(text, asked).check_measured(asked, known["quality"])
        except UsageError as error:
            raise ValueError(error.marked) from None
        return text

    @property
    def costs(self) -> tuple[str, ...]:
        """What is asked for beside quality, objectives first."""
        names = dict.fromkeys((*self.objectives, *self.limits))
        return tuple(name for name in names if name != QUALITY)

    def asks_for(self, name: str) -> bool:
        """Whether something is an objective or limited."""
        return name in self.objectives or name in self.limits

    @property
    def judged(self) -> Quality:
        """What quality is."""
        return QUALITIES[self.quality] if self.evaluator is None else EXTERNAL_QUALITY

    def needs(self, name: str) -> bool:
        """Whether something is asked for that has to be measured, or a rate that follows from it.

        Nothing is where an evaluator tells all costs.
        """
        if self.evaluator is not None:
            return False
        asked = (*self.objectives, *self.limits)
        return any(name in (one, OBJECTIVES[one].rate_of) for one in asked)

    @property
    def timed(self) -> tuple[str, ...]:
        """The objectives for which networks have to be timed, in the order of their stages."""
        return tuple(name for name in TIMED if self.needs(name))

    @property
    def needs_latency(self) -> bool:
        """Whether networks have to be timed."""
        return bool(self.timed)

    @property
    def ranks(self) -> bool:
        """Whether the searcher ranks networks, and so can prune the space and evolve in it."""
        return self.searcher in ("rank-evolve", "ranknas")


class SpaceSource(BaseModel):
    """A search space: one that has a name, or the text of one."""

    model_config = FROZEN
    other_ways: ClassVar[tuple[str, ...]] = ()
    """To come by a space, in words; with marks of `search_spaces.wording`."""

    space: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern=LINE,
            description="A shipped space (nas space list), or a TOML file of your own.",
            examples=["digits"],
        ),
        Shown(metavar="NAME|FILE", apart="chosen first: the form shows its choices"),
    ] = None
    space_toml: Annotated[
        str | None,
        Field(
            max_length=MAX_TOML,
            description="A space of your own, as TOML; instead of space.",
        ),
        Shown(option=False, apart="a space of one's own is sent by nas submit --space FILE"),
    ] = None
    restrict: Annotated[
        Choices,
        Field(
            max_length=200,
            description="The only choices of a gene to search, in all layers (encoder.ffn_dim) or "
            "in one (encoder.2.ffn_dim).",
            examples=[{"encoder.num_layers": [1, 2]}],
        ),
        Shown(
            metavar="GENE=CHOICE,CHOICE",
            read=gene_choices,
            many=True,
            apart="each choice of each gene has a box to tick",
        ),
    ] = {}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if self.space is not None and self.space_toml is not None:
            raise ValueError("give one of space and space_toml")
        if self.space is None and self.space_toml is None and not self.makes_space:
            known = f"name one with {mark('space')} (nas space list)"
            *ways, last = (known, "bring one along as space_toml", *self.other_ways)
            raise ValueError(f"no space is given: {', '.join(ways)}, or {last}")
        return self

    @property
    def makes_space(self) -> bool:
        """Whether there is something else that a space is made from."""
        return False


class SearchRequest(SearchTerms, SpaceSource):
    """A search, as people ask for it."""

    other_ways: ClassVar[tuple[str, ...]] = (
        f"have one made for a folder of nas data prepare, with {mark('data')}",
        BEGIN,
    )

    baseline: Annotated[
        str | dict[str, Any],
        Field(
            max_length=1000,
            description="What is trained beside the winner, with the same steps and seed, to tell "
            "whether the search was worth it: the plain networks of the space (softmax attention, "
            "all layers alike), the largest within the limits and the one nearest to the winner's "
            "cost, or the checkpoint that a search begins with, unless networks are to say what it "
            "says; an architecture of your own (a file, or its JSON); or none.",
            examples=[PLAIN, NONE, "mine.json"],
        ),
        Shown("Baseline", metavar=f"{PLAIN}|{NONE}|FILE", usual=PLAIN, without="--no-baseline"),
    ] = PLAIN

    # None until it is known how the search begins.
    pick: Annotated[
        str | None,
        Field(
            max_length=200,
            description=picks.HELP,
            examples=[*picks.WORDS, picks.SAVING, "latency_ms<=12,params<=2e5"],
        ),
        Shown(
            "Retrain",
            metavar=picks.METAVAR,
            usual=f"{picks.SENSIBLE}, or {picks.SAVING} beginning with a checkpoint",
        ),
    ] = None  # type: ignore[assignment]

    # None until it is known what is picked.
    retrain: Annotated[
        int | None,
        Field(ge=1, le=MOST_CANDIDATES, description=CANDIDATES_HELP, examples=[CANDIDATES]),
        NUMERIC,
        Shown(
            "Candidates",
            usual=f"{CANDIDATES}, or 1 with a pick of your own or beginning with a checkpoint",
        ),
    ] = None  # type: ignore[assignment]

    start: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern=LINE,
            description="Begin with a checkpoint: a folder of Hugging Face's form "
            f"({', '.join(FAMILIES)}, or an export of a run), which networks inherit from and are "
            "distilled from. "
            "Without a space the one around it is searched (nas space from). On a server the name "
            "of one in its folder of checkpoints.",
            examples=["./my-llama"],
        ),
        Shown(
            "Checkpoint",
            metavar="DIR",
            usual="none: networks are trained from scratch",
        ),
    ] = None
    dataset: Annotated[
        str | None,
        Field(max_length=200, pattern=LINE, description="The data set.", examples=["digits"]),
        Shown("Data set", metavar="NAME", usual="the space's own"),
    ] = None
    data: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern=LINE,
            description="A folder made by nas data prepare (nas search makes a space for it where "
            "none is named), the file of a data set that is not built in, or the word synthetic: a "
            "generated corpus, to try a space with. On a server the name of one in its data "
            "folder, which needs a space.",
            examples=[SYNTHETIC],
        ),
        Shown("Data", metavar="DIR|FILE|synthetic"),
    ] = None
    hours: Annotated[
        float | None,
        Field(
            gt=0.0,
            le=MOST_HOURS,
            description="Of nas search, where no space is named: for about how long the space that "
            "is made for the data is to be searched on this machine with the preset quick. Sizes "
            "of networks and lengths of trainings follow from it (nas space new). A server makes "
            "no spaces.",
            examples=[2],
        ),
        NUMERIC,
        Shown(
            metavar="HOURS",
            usual=f"{DEFAULT_HOURS:g}",
            apart="a space is made for data on the machine that has them, by the command",
        ),
    ] = None
    keep: Annotated[
        Choices | Literal["all"],
        Field(
            max_length=200,
            description="Choices that pruning may not cut: encoder.attention=omni, several with "
            "commas, in one layer encoder.2.attention=omni; or all.",
            examples=[{"encoder.attention": ["omni"]}, ALL],
        ),
        Shown("Never cut", metavar="GENE=CHOICE", read=typed_choices, many=True),
    ] = {}
    settings: Annotated[
        dict[Annotated[Name, checked(check_setting)], Number],
        Field(
            max_length=100,
            description="Override a number of the preset (nas search --list-settings names them).",
            examples=[{"supernet.epochs": 30}],
        ),
        Shown("Settings", metavar="NAME=VALUE", read=pairs, many=True),
    ] = {}
    threads: Annotated[
        int | None,
        Field(ge=1, le=1024, description="CPU threads."),
        NUMERIC,
        Shown("Threads", usual="the space's own, or one for each core"),
    ] = None
    deterministic: Annotated[
        bool,
        Field(
            description="On a graphics card, train to the same weights whenever a training is "
            "repeated or goes on, at some cost in time; on a processor it is so in any case.",
        ),
        Shown("Deterministic", apart="it is two of the settings"),
    ] = False
    workload: Annotated[
        str | None,
        Field(
            max_length=200,
            pattern=LINE,
            description="What is timed and what is cached, over the space's own: batch, source, "
            "target, beam, dtype, mode, runtime (eager, compile, or on a graphics card graph); of "
            "a decoder also context (positions already read) and allocator (live or paged).",
            examples=["batch=1,source=30", "context=8192,batch=4"],
        ),
        Shown("Workload", metavar="KEY=VALUE,…", usual="the space's own"),
    ] = None
    device_profile: Annotated[
        str | None,
        Field(
            max_length=1000,
            pattern=LINE,
            description="Predict latency from a file made by nas profile, here or on another "
            "machine; on a server the name of one of its own. Only on the device it was made on "
            "are the best networks timed.",
            examples=["laptop.json"],
        ),
        Shown("Device profile", metavar="FILE"),
    ] = None

    @field_validator("baseline")
    @classmethod
    def _baseline(cls, given: str | dict[str, Any]) -> str | dict[str, Any]:
        with as_value_error():
            return given if isinstance(given, str) else Architecture.from_json(given).to_json()

    @model_validator(mode="after")
    def _threads_once(self) -> Self:
        if self.threads is not None and "threads" in self.settings:
            raise ValueError("threads is given twice: by itself and among the settings")
        return self

    @model_validator(mode="after")
    def _hours_for_a_made_space(self) -> Self:
        named = self.space is not None or self.space_toml is not None or self.start is not None
        if self.hours is not None and named:
            raise ValueError(
                "hours is for a space that is made for data, and one is named here, or made around "
                "a checkpoint: leave hours out, and choose a preset"
            )
        return self

    @property
    def makes_space(self) -> bool:
        """See `SpaceSource.makes_space`."""
        return self.start is not None or self.data not in (None, SYNTHETIC)

    @property
    def overrides(self) -> dict[str, str]:
        """Numbers of the preset to override, as texts; null leaves the preset's."""
        values = {**self.settings, "threads": self.settings.get("threads", self.threads)}
        if self.deterministic:
            values |= dict.fromkeys(DETERMINISTIC, True)
        texts = {name: str(value) for name, value in values.items() if value is not None}
        return {n: text.lower() if text in ("True", "False") else text for n, text in texts.items()}


class Start(BaseModel):
    """The checkpoint that a search begins with.

    Attributes:
        folder: where it is.
        digest: `supernet.pretrained.checkpoint.checkpoint_digest`.
    """

    model_config = FROZEN

    folder: str
    digest: str


class SearchSpec(SearchTerms):
    """A search, whole: two runs with equal specs are one run.

    Attributes:
        space_toml: the text of the space.
        dataset: name of a data set, or of the prepared folder; ``synthetic`` is generated.
        data: a folder made by ``nas data prepare``, or the file of a data set that needs one.
        budget: the numbers of the preset, and what was asked for in place of them.
        keep: protected choices: gene or slot → choices that pruning may not cut.
        device_profile: digest of the device profile that predicts latency, which the run folder
            keeps; None where networks are timed for that.
        start: the checkpoint that networks inherit from; None where all are trained from scratch.
        baseline: what is trained beside the winner: the plain networks of the space, the checkpoint
            that it begins with, or an architecture; None for nothing.
    """

    space_toml: str
    dataset: str
    data: str | None = None
    budget: Budget = Budget()
    keep: dict[str, tuple[Choice, ...]] = {}
    device_profile: str | None = None
    start: Start | None = None
    baseline: Literal["plain", "checkpoint"] | dict[str, Any] | None = None

    @field_validator("keep")
    @classmethod
    def _keep(
        cls, keep: dict[str, tuple[Choice, ...]], info: ValidationInfo
    ) -> dict[str, tuple[Choice, ...]]:
        if not keep or "space_toml" not in info.data:
            return keep
        space = parse_space(info.data["space_toml"], SPACE_TOML, kept=True)
        return checked_protected(space, keep)

    @model_validator(mode="after")
    def _inherits_or_not(self) -> Self:
        if self.start is not None and self.trains_alone:
            raise ValueError(
                f"own_updates is {self.budget.own_updates:,}, which trains each network from "
                "scratch, and a search that begins with a checkpoint inherits its weights: set "
                "own_updates to 0, or search without the checkpoint"
            )
        if self.budget.own_seeds > 1 and not self.trains_alone:
            raise ValueError(
                f"own_seeds is {self.budget.own_seeds:,}, but no network is trained alone before "
                "it is observed: set own_updates to the updates of such a training, or own_seeds "
                "to 1"
            )
        return self

    @property
    def trained(self) -> str:
        """How its chosen networks are trained, in words."""
        return "trained from scratch" if self.start is None else "fine-tuned"

    @property
    def kept_by(self) -> Quality:
        """By what weights of chosen networks are compared, those of a training and of several.

        It is the loss; where a search begins with a checkpoint, whose networks are good before any
        training, it is what the search looks for.
        """
        return QUALITIES["loss" if self.start is None else self.quality]

    @cached_property
    def space(self) -> SearchSpace:
        """The parsed space, of this project's own networks.

        Raises:
            UsageError: where the networks are those of an evaluator of others, which can be neither
                built nor trained.
        """
        if self.evaluator is not None:
            raise UsageError(
                "the networks of this search are known to its evaluator alone: they cannot be "
                "trained, exported, timed or counted here"
            )
        return parse_space(self.space_toml, SPACE_TOML, kept=True)

    @cached_property
    def domain(self) -> GenotypeSpace:
        """The networks that are searched, whatever their genes mean."""
        return self.space if self.evaluator is None else self.parsed(self.space_toml, SPACE_TOML)

    def parsed(self, text: str, source: str) -> GenotypeSpace:
        """A space of the kind that is searched.

        Args:
            text: the TOML document.
            source: what messages call it.

        Raises:
            SpaceFileError: naming file, line and key, what was found and what is allowed.
        """
        if self.evaluator is not None:
            return parse_genes(text, source)
        return parse_space(text, source, kept=True)

    def objective(self, name: str) -> Objective:
        """An objective, quality as it is measured in this search."""
        if self.evaluator is not None:
            return self.judged.objective if name == QUALITY else OBJECTIVES[name]
        return objective(name, self.quality, self.space.task)

    @property
    def trains_alone(self) -> bool:
        """Whether each network is trained alone before it is observed: there is no supernet."""
        return self.budget.own_updates > 0

    @cached_property
    def digest(self) -> str:
        """sha256 of the whole spec; fields that older versions had not are left out when unused."""
        values = self.model_dump(mode="json")
        for name, unused in LATER_FIELDS.items():
            if values[name] == unused:
                del values[name]
        if self.start is None:
            del values["start"], values["budget"]["distil"]
        for training in (values["budget"]["supernet"], values["budget"]["retrain"]):
            for name in LATER_SETTINGS:
                if not training[name]:
                    del training[name]
        for name, unused in (("own_updates", 0), ("own_seeds", 1)):
            if values["budget"][name] == unused:
                del values["budget"][name]
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


# Field → its value where it is not used.
LATER_FIELDS: Mapping[str, Any] = {
    "keep": {},
    "evaluator": None,
    "device_profile": None,
    "baseline": None,
    "retrain": 1,
}
# Of a training, none of which older versions had; all are off where they are 0 or null.
LATER_SETTINGS = (
    "checkpoint_updates",
    "deterministic",
    "loss_chunk",
    "recompute",
    "stop_loss",
    "threads",
)


def build_spec(**values: Any) -> SearchSpec:
    """Validate a spec.

    Raises:
        UsageError: one sentence naming the field at fault, what it was and what it may be.
    """
    try:
        return SearchSpec(**values)
    except ValidationError as error:
        raise UsageError(first_problem(error, SearchSpec)) from error
