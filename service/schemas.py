"""What goes over the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from nas.objectives import LATENCY, QUALITY, QualityMetric
from nas.request.picks import BEST, WORDS, read_pick
from search_spaces.errors import UsageError
from service.jobs import Job, Kind, State
from supernet.export.formats import FORMATS

MAX_TOML = 100_000
Choice = int | str
Name = Annotated[str, Field(max_length=100)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = float | Whole | Name | bool | None
Kept = Whole | Name
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Text = Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]


def _pick(text: str) -> str:
    """Refuse what cannot choose a network."""
    try:
        return read_pick(text).text
    except UsageError as error:
        raise ValueError(str(error)) from None


Pick = Annotated[
    str, Field(max_length=200, json_schema_extra={"examples": list(WORDS)}), AfterValidator(_pick)
]


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SpaceSource(_Input):
    """A search space: one that is registered, or the text of one.

    Attributes:
        space: name of a registered space.
        space_toml: a space of your own, as TOML; instead of `space`.
        restrict: gene or slot → the choices to keep, for example
            ``{"encoder.num_layers": [1, 2]}``.
    """

    space: Word | None = None
    space_toml: Annotated[str, Field(max_length=MAX_TOML)] | None = None
    restrict: Annotated[
        dict[
            Name,
            Annotated[list[Kept], Field(min_length=1, max_length=200)],
        ],
        Field(max_length=200),
    ] = {}

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.space is None) == (self.space_toml is None):
            raise ValueError("give one of space and space_toml")
        return self


class JobRequest(SpaceSource):
    """A search. ``{"space": "digits", "preset": "smoke", "seed": 1}`` is enough.

    Attributes:
        dataset: name of a registered data set; the space's own unless given.
        preset: how much to do: ``smoke``, ``quick``, ``standard`` or ``paper``.
        objectives: what to minimise: ``quality`` and any of ``latency_ms``, ``flops``, ``params``.
        quality: what quality is.
        limits: cost → largest value allowed.
        device: where networks are trained and timed.
        seed: of everything random.
        pick: network to retrain: ``best``, ``knee``, ``cheapest``, conditions such as
            ``latency_ms<=12,params<=2e5``, or an id.
        settings: numbers of the preset to override, as `nas search --list-settings` names them.
        title: your own words.
        priority: jobs with a larger one go first; above 5 for administrators only.
    """

    model_config = ConfigDict(
        extra="forbid",
        allow_inf_nan=False,
        json_schema_extra={"examples": [{"space": "digits", "preset": "smoke", "seed": 1}]},
    )

    dataset: Word | None = None
    preset: Literal["smoke", "quick", "standard", "paper"] = "quick"
    objectives: Annotated[list[Name], Field(max_length=10)] = [QUALITY, LATENCY]
    quality: QualityMetric = "loss"
    limits: Annotated[dict[Name, float], Field(max_length=10)] = {}
    device: Literal["cpu", "cuda"] = "cpu"
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    pick: Pick = BEST
    settings: Annotated[dict[Name, Number], Field(max_length=100)] = {}
    title: Text = ""
    priority: Annotated[int, Field(ge=0, le=9)] = 5


class NetworkRequest(_Input):
    """Which network of a finished search to do something about.

    Attributes:
        pick: ``best``, ``knee``, ``cheapest``, conditions such as ``latency_ms<=12``, or an id.
        priority: jobs with a larger one go first; above 5 for administrators only.
    """

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"pick": "knee"}]})

    pick: Pick
    priority: Annotated[int, Field(ge=0, le=9)] = 5


class ExportRequest(NetworkRequest):
    """Which network to write as a folder that works without the run, and how.

    Attributes:
        format: of the folder.
        weights: those of the network's retraining, or those it inherited from the supernet.
    """

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"pick": "knee", "format": "safetensors"}]},
    )

    format: Annotated[str, Field(json_schema_extra={"enum": list(FORMATS)})] = "safetensors"
    weights: Literal["trained", "inherited"] = "trained"

    @field_validator("format")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in FORMATS:
            raise ValueError(f"there is no format {value[:50]!r}; there are {', '.join(FORMATS)}")
        return value


class Progress(BaseModel):
    """How far a job is."""

    stage: str | None
    label: str | None
    done: int
    total: int
    message: str
    measured: int
    front_size: int | None
    hypervolume: float | None


class JobOut(BaseModel):
    """A job."""

    id: str
    kind: Kind
    state: State
    cancel_requested: bool
    owner: str
    run: str
    space: str
    dataset: str
    preset: str
    title: str
    pick: str
    priority: int
    attempt: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_event: int
    progress: Progress
    request: dict[str, Any] | None = None

    @classmethod
    def of(cls, job: Job, *, whole: bool = True) -> Self:
        """What is told of a job; with what was requested only when it is looked at alone."""
        summary = job.summary
        return cls(
            id=job.id,
            kind=job.kind,
            state=job.state,
            cancel_requested=job.cancel_requested,
            owner=job.owner,
            run=job.run,
            space=job.space,
            dataset=job.dataset,
            preset=job.preset,
            title=job.title,
            pick=job.pick,
            priority=job.priority,
            attempt=job.attempt,
            error=job.error,
            created_at=_moment(job.created_at),
            started_at=_moment(job.started_at),
            ended_at=_moment(job.ended_at),
            last_event=job.last_seq,
            progress=Progress(
                stage=summary.stage,
                label=summary.label,
                done=summary.done,
                total=summary.total,
                message=summary.message,
                measured=summary.measured,
                front_size=summary.front_size,
                hypervolume=summary.hypervolume,
            ),
            request=dict(job.request) if whole else None,
        )


class JobPage(BaseModel):
    """Jobs, newest first; `next` is the `before` of the next page, or null at the end."""

    jobs: list[JobOut]
    next: str | None


class SlotOut(BaseModel):
    """One place of a space where a choice is made."""

    name: str
    gene: str
    stack: str
    layer: int | None
    choices: list[Choice]


class SpaceOut(BaseModel):
    """A search space; its size is text, since it is often beyond what JSON numbers can hold."""

    name: str
    task: str
    description: str
    dataset: str | None
    size: str
    digest: str
    genes: list[SlotOut] = []


class DatasetOut(BaseModel):
    """A data set that requests may name."""

    name: str
    kind: str
    task: str | None
    examples: dict[str, int] | None
    usable: bool


class ProfileOut(BaseModel):
    """A device profile: timings of networks on one device."""

    id: str
    device: dict[str, Any]
    label: str
    workload: dict[str, Any]
    settings: str
    networks: int


def _moment(seconds: float | None) -> Any:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
