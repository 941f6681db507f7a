"""What goes over the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nas.executors.base import ExecutorKind
from nas.request.fields import LINE, Shown, checked
from nas.request.picks import HELP, WORDS, read_pick
from nas.request.spec import SearchRequest
from service.jobs import Job, Kind, State
from supernet.export.formats import FORMATS

Choice = int | str
JobId = Annotated[str, Field(pattern=r"^[0-9a-f]{20}$")]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
Text = Annotated[str, Field(max_length=200, pattern=LINE)]


Pick = Annotated[
    str,
    Field(max_length=200, examples=[*WORDS, "latency_ms<=12"], description=HELP),
    checked(lambda text: read_pick(text).text),
]
Priority = Annotated[
    int,
    Field(ge=0, le=9, description="Larger ones go first; above 5 for administrators only."),
    Shown("Priority"),
]


class JobRequest(SearchRequest):
    """A search, and how its job is worked on.

    ``{"space": "digits", "preset": "smoke", "seed": 1}`` is enough.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"space": "digits", "preset": "smoke", "seed": 1}]}
    )

    title: Annotated[
        str,
        Field(max_length=200, pattern=LINE, description="Your own words for it."),
        Shown("Title"),
    ] = ""
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
