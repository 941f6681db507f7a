"""What goes over the wire."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nas.executors.base import ExecutorKind
from nas.request.fields import LINE, NUMERIC, Shown, checked, words
from nas.request.picks import HELP, WORDS, read_pick
from nas.request.spec import BEGIN, SearchRequest
from nas.results.predictions import USUAL_TOKENS
from nas.run.omni_views import Weights
from nas.search.front import Role
from search_spaces.space import Choice, SearchSpace
from service.api.catalog import Checkpoint
from service.jobs.listing import Filter, Order
from service.jobs.states import Job, Kind, Outcome, State
from service.uploads import MOST_FILES, Upload, Uploaded
from service.wording import for_programs
from supernet.export.formats import FORMATS

JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Text = Annotated[str, Field(max_length=200, pattern=LINE)]
LINES = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*$"  # of which there may be several
MOST_TAGS = 10


def _real(day: str) -> str:
    try:
        date.fromisoformat(day)
    except ValueError as error:
        # Unlike a ValueError it is told with the field and what was given.
        raise PydanticCustomError("no_day", str(error)) from None
    return day


Day = Annotated[
    str,
    Field(pattern=r"^\d{4}-\d{2}-\d{2}$", json_schema_extra={"format": "date"}),
    AfterValidator(_real),
]

Pick = Annotated[
    str,
    Field(max_length=200, examples=[*WORDS, "latency_ms<=12"], description=HELP),
    checked(lambda text: read_pick(text).text),
]
Priority = Annotated[
    int,
    Field(ge=0, le=9, description="Larger ones go first; above 5 for administrators only."),
    NUMERIC,
    Shown("Priority"),
]


Title = Annotated[
    str, Field(max_length=200, pattern=LINE, description="Your own words for it."), Shown("Title")
]
Tag = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,31}$")]
Tags = Annotated[
    list[Tag],
    Field(
        max_length=MOST_TAGS,
        description="Words to find it by, of letters, digits and . _ -",
        examples=[["paper", "table-2"]],
    ),
    Shown("Tags", metavar="TAG", read=words, many=True),
    AfterValidator(lambda given: sorted(set(given))),
]
Notes = Annotated[
    str,
    Field(max_length=4000, pattern=LINES, description="What else is to be said about it."),
    Shown("Notes", long=True),
]


class JobEdit(BaseModel):
    """What the owner says about a job; what is left out stays as it is."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"title": "Table 2", "tags": ["paper"]}]}
    )

    title: Title | None = None
    tags: Tags | None = None
    notes: Notes | None = None


class JobQuery(BaseModel):
    """Which jobs are listed, and in which order: in the API, on the page and by `nas jobs`."""

    model_config = ConfigDict(extra="forbid")

    state: Annotated[
        list[State],
        Field(max_length=len(State), description="Only those in that state."),
        Shown("State", many=True),
    ] = []
    kind: Annotated[
        Kind | None, Field(description="Only those that do that."), Shown("Kind", usual="any")
    ] = None
    space: Annotated[
        Word | None,
        Field(description="Only those of that space."),
        Shown("Space", metavar="NAME", usual="any"),
    ] = None
    owner: Annotated[
        str | None,
        Field(max_length=64, description="Only those of that owner."),
        Shown("Owner", metavar="NAME", usual="any that you may see"),
    ] = None
    tag: Annotated[
        list[Tag],
        Field(max_length=MOST_TAGS, description="Only those with that tag."),
        Shown("Tag", metavar="TAG", read=words, many=True),
    ] = []
    text: Annotated[
        Text | None,
        Field(description="Only those with that in title, tags, space, data set or id."),
        Shown("Text", usual="any"),
    ] = None
    since: Annotated[
        Day | None,
        Field(description="Only those that were submitted on that day or later, in UTC."),
        Shown("From", metavar="YYYY-MM-DD", usual="any day"),
    ] = None
    until: Annotated[
        Day | None,
        Field(description="Only those that were submitted on that day or before, in UTC."),
        Shown("To", metavar="YYYY-MM-DD", usual="any day"),
    ] = None
    run: Annotated[
        JobId | None,
        Field(description="Only those on the run of that search."),
        Shown("Run", metavar="JOB", usual="any"),
    ] = None
    sort: Annotated[
        Order,
        Field(
            description="What they are listed by; moments and numbers begin with the largest, "
            "texts with A."
        ),
        Shown("Sorted by"),
    ] = Order.created
    backwards: Annotated[
        bool, Field(description="List them in the opposite order."), Shown("Backwards")
    ] = False
    limit: Annotated[int, Field(ge=1, le=200, description="How many."), Shown("How many")] = 50
    before: Annotated[
        JobId | None, Field(description="`next` of the page before."), Shown(option=False)
    ] = None

    @model_validator(mode="before")
    @classmethod
    def _given(cls, values: Any) -> Any:
        """A form sends fields that are empty as well, and people give one word for a list of it."""
        if not isinstance(values, dict):
            return values
        values = {
            name: [value] if name in ("state", "tag") and isinstance(value, str) else value
            for name, value in values.items()
        }
        given = {
            name: [one for one in value if one != ""] if isinstance(value, list) else value
            for name, value in values.items()
        }
        return {name: value for name, value in given.items() if value not in ("", [])}

    def filter(self, owner: str | None) -> Filter:
        """The same for the store.

        Args:
            owner: whose alone may be seen; None for an administrator.
        """
        return Filter(
            owner=owner or self.owner,
            states=tuple(self.state),
            kind=self.kind,
            space=self.space,
            run=self.run,
            text=self.text,
            before=self.before,
            tags=tuple(self.tag),
            since=None if self.since is None else date.fromisoformat(self.since),
            until=None if self.until is None else date.fromisoformat(self.until),
            order=self.sort,
            backwards=self.backwards,
        )


class JobRequest(SearchRequest):
    """A search, and how its job is worked on.

    ``{"space": "digits", "preset": "smoke", "seed": 1}`` is enough.
    """

    other_ways = ("write one with nas space new --data DIR where the data are", BEGIN)

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"space": "digits", "preset": "smoke", "seed": 1}]}
    )

    title: Title = ""
    tags: Tags = []  # noqa: RUF012
    notes: Notes = ""
    priority: Priority = 5
    executor: Annotated[
        ExecutorKind | None,
        Field(
            description="Where networks are evaluated and timed: in the job's process, or by "
            "workers of a Ray cluster where the server has one."
        ),
        Shown("Executor", usual="the server's own"),
    ] = None


class NetworkRequest(BaseModel):
    """Which network of a finished search to do something about."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"pick": "knee"}]})

    pick: Pick
    priority: Priority = 5


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

    model_config = ConfigDict(from_attributes=True)

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

    model_config = ConfigDict(from_attributes=True, populate_by_name=True)

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
    tags: list[str]
    notes: str
    pick: str
    priority: int
    attempt: int
    error: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    last_event: int = Field(validation_alias="last_seq")
    progress: Progress = Field(validation_alias="summary")
    request: dict[str, Any] | None = None

    @classmethod
    def of(cls, job: Job) -> Self:
        """What is told of a job that is looked at alone."""
        made = cls.model_validate(job)
        return made.model_copy(update={"error": made.error and for_programs(made.error)})

    @classmethod
    def listed(cls, job: Job) -> Self:
        """What is told of a job in a list: not what was requested."""
        return cls.of(job).model_copy(update={"request": None})


class JobPage(BaseModel):
    """Jobs, newest first; `next` is the `before` of the next page, or null at the end."""

    jobs: list[JobOut]
    next: str | None


class FeedOut(BaseModel):
    """Where one's feed of jobs is found; whoever knows the address can read it."""

    url: str


class WebhookRequest(BaseModel):
    """Where to tell of jobs that end."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"url": "https://example.org/hooks/nas"}]}
    )

    url: Annotated[str, Field(max_length=2000, pattern=LINE)]


class DeliveryOut(BaseModel):
    """A message to a webhook: what has become of it, and the first words of the last answer."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    job: str | None
    created_at: datetime
    outcome: Outcome
    tries: int
    next_at: datetime | None
    status: int | None
    answer: str
    ended_at: datetime | None


class WebhookOut(BaseModel):
    """Where an owner is told of jobs that end, and the last messages, newest first."""

    url: str
    created_at: datetime
    deliveries: list[DeliveryOut]


class WebhookSecretOut(BaseModel):
    """The secret of a webhook, which is told once: its messages are signed with it."""

    url: str
    secret: str


class SlotOut(BaseModel):
    """One place of a space where a choice is made."""

    model_config = ConfigDict(from_attributes=True)

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

    @classmethod
    def of(cls, space: SearchSpace, *, whole: bool = True) -> Self:
        """What is told of a space; with its genes only when it is looked at alone."""
        dataset = space.data.get("dataset")
        return cls(
            name=space.name,
            task=space.task,
            description=space.description,
            dataset=dataset if isinstance(dataset, str) else None,
            size=str(space.size),
            digest=space.digest,
            genes=[SlotOut.model_validate(slot) for slot in (space.slots if whole else ())],
        )


class DatasetOut(BaseModel):
    """A data set that requests may name."""

    name: str
    kind: str
    task: str | None
    examples: dict[str, int] | None
    usable: bool


class DeviceProfileOut(BaseModel):
    """A device profile that requests may name."""

    name: str


class EvaluatorOut(BaseModel):
    """An evaluator that requests may name."""

    name: str


class CheckpointOut(BaseModel):
    """A checkpoint that searches may begin with."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    family: str | None
    task: str | None
    problem: str | None
    owner: str | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, one: Checkpoint) -> Self:
        """One that the server's owner put there."""
        return cls.model_validate(one)

    @classmethod
    def uploaded(cls, one: Uploaded) -> Self:
        """One that somebody has uploaded, which was read then."""
        return cls(
            name=one.name,
            family=one.family,
            task=one.task,
            problem=None,
            owner=one.owner,
            bytes=one.bytes,
        )


class UploadRequest(BaseModel):
    """A checkpoint that is to be uploaded."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"name": "minilm", "files": {"config.json": 612, "model.safetensors": 90868376}}
            ]
        },
    )

    name: Word
    files: Annotated[
        dict[
            Annotated[str, Field(max_length=200, pattern=LINE)],
            Annotated[int, Field(ge=0), NUMERIC],
        ],
        Field(max_length=MOST_FILES, description="Name of each file in the folder, and its bytes."),
    ]


class UploadOut(BaseModel):
    """An upload whose files may come."""

    id: str
    name: str
    files: dict[str, int]

    @classmethod
    def of(cls, one: Upload) -> Self:
        """As it was announced."""
        return cls(id=one.id, name=one.name, files=dict(one.files))


class UploadedFileOut(BaseModel):
    """A file of an upload that has come as a whole."""

    name: str
    bytes: int
    sha256: str


class ProfileOut(BaseModel):
    """Timings of networks on one device, kept between runs; no file of `nas profile`."""

    id: str
    device: dict[str, Any]
    label: str
    workload: dict[str, Any]
    settings: str
    networks: int


class ArtifactOut(BaseModel):
    """A file of a job's run; the checksum is the one its stage has recorded."""

    path: str
    size: int
    sha256: str | None
    stage: str | None


class EntryOut(BaseModel):
    """One network: what was measured of it and what was predicted.

    `doubtful` names measured values that should not be believed, each with the reason.
    """

    id: str
    architecture: dict[str, Any]
    measured: dict[str, float]
    predicted: dict[str, float]
    doubtful: dict[str, str] = {}


class ObjectiveOut(BaseModel):
    """What was minimised; at the reference a network is of no use."""

    name: str
    metric: str
    unit: str
    goal: str
    reference: float | None = None


class BaselineOut(EntryOut):
    """A network that the winner is held against, and what it was chosen as."""

    roles: list[Role]


class FrontOut(BaseModel):
    """The Pareto front; `final` is false while the search is still measuring.

    `predicted_for` names what could not be measured and for which device it is predicted;
    `checkpoint` is what the search began with, whether it is on the front or not.
    """

    final: bool
    objectives: list[ObjectiveOut]
    front: list[EntryOut]
    hypervolume: float | None
    baselines: list[BaselineOut] = []
    predicted_for: dict[str, str] = {}
    checkpoint: EntryOut | None = None


class ArchitectureOut(EntryOut):
    """A network, what it costs and what came of training it from scratch.

    `problem` tells when it learnt less on its own than it showed in the search.
    """

    on_front: bool
    retrained: dict[str, Any] | None
    problem: str | None


class PredictRequest(BaseModel):
    """What a trained network is to say something about: a text, or a picture as base64."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "Hello"}]})

    text: Annotated[str, Field(min_length=1, max_length=20_000)] | None = None
    picture: Annotated[Base64Bytes, Field(description="A PNG or JPEG, as base64.")] | None = None
    tokens: Annotated[
        int, Field(ge=1, le=200, description="That a language model writes behind the text.")
    ] = USUAL_TOKENS

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.text is None) == (self.picture is None):
            raise ValueError("give either a text or a picture")
        return self


class PredictionOut(BaseModel):
    """The network's answer; `chances` is empty where there are no classes, the likeliest first.

    `warning` tells that the data on the server are not those that the network learnt from. Of a
    text that was too long `cut_at` are the tokens that were read, and `note` tells which.
    """

    answer: str
    chances: dict[str, float] = {}
    warning: str | None = None
    cut_at: int | None = None
    note: str | None = None


class StageDurationOut(BaseModel):
    """What a stage will do and take; `seconds` is null where that is not told."""

    label: str
    what: str
    seconds: float | None


class DurationOut(BaseModel):
    """How long a search would take on the machine of the service.

    `about` says what that is told from; `reason` why nothing is told, and is empty otherwise;
    `warning` what a busy machine makes longer, and is empty where the machine is at rest.
    """

    seconds: float
    stages: list[StageDurationOut]
    about: str
    reason: str
    warning: str = ""


class OmniLayerOut(BaseModel):
    """Shares of one omni layer; `sources` are layers' numbers, 0 for the embeddings.

    `attention` has for each head a row for each source of the queries, with the share of their
    attention that each source of the keys gets; `pooling` is the share of features kept from each.
    """

    stack: Literal["encoder", "decoder"]
    layer: int
    sources: list[int]
    attention: list[list[list[float]]]
    pooling: list[float]


class OmniMapOut(BaseModel):
    """The same for one image, patch by patch, for each source."""

    example: int
    layer: int
    attention: list[list[float]]
    pooling: list[list[float]]


class OmniViewsOut(BaseModel):
    """What the omni layers of a network look at."""

    id: str
    weights: Weights
    examples: int
    layers: list[OmniLayerOut]
    maps: list[OmniMapOut]
