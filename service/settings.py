"""What an operator can set, from the environment and the command line, and the home it names."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError

from nas.executors.base import ExecutorKind, ExecutorSettings
from nas.run.evaluators.opening import EvaluatorName
from search_spaces.errors import UsageError
from search_spaces.wording import option

PREFIX = "NAS_"
UPLOADED_DATA = "uploaded-data"
PRIVATE = ("runs", "logs", "cache", "trash", "uploads", UPLOADED_DATA)  # folders of the home
API_PREFIX = "/api/v1"
DEFAULT_SERVER = "http://127.0.0.1:8321"  # where clients look, as `host` and `port` say below
SHARED = ("data", "spaces")  # people put things there, and read what others put there
OTHERS = 0o077
MIB, GIB = 2**20, 2**30
SECRETS = ("NAS_DATABASE_URL", "NAS_TOKEN", "PGPASSWORD")
HINTS = {
    "trusted_proxies": "; give addresses and networks with commas between them, for example "
    "127.0.0.1,10.0.0.0/8"
}

log = logging.getLogger("service.settings")


def default_home() -> Path:
    """Where a service keeps everything unless it is told otherwise."""
    return Path(platformdirs.user_data_dir("nas-service", appauthor=False))


class Settings(BaseModel):
    """A service's settings; each is also the environment variable ``NAS_`` and its name.

    Attributes:
        home: folder of the database, the runs, registered data sets and spaces, and timings.
            The API and all workers of a service need the same one.
        database_url: SQLAlchemy's; a file in `home` unless given.
        database_timeout_s: seconds after which a database that does not answer counts as away, and
            a transaction that stands still is undone.
        host: address the API listens on.
        port: its port; 0 for any free one.
        no_auth: whether everybody is an administrator; only on a loopback address.
        allowed_hosts: further names under which the API is reached, for example behind a proxy.
        trusted_proxies: addresses and networks of proxies whose X-Forwarded-For and
            X-Forwarded-Proto are believed; limits for an address then count the client's.
        heartbeat_s: seconds between two signs of life of a worker, at most half of `stale_s`.
        stale_s: seconds without one after which a job is given to another worker.
        poll_s: seconds an idle worker waits before it asks for work again.
        stop_grace_s: seconds a job's process has to end by itself when it is cancelled.
        jobs_per_owner: jobs of one owner that run at once.
        max_losses: workers that may die over a job before it counts as failed.
        quota_gib: disk space of all runs; see docs/service.md for what is deleted above it.
        quota_gib_per_owner: disk space of one owner's runs; only that of all is limited unless
            given.
        queued_per_owner: jobs of one owner that may wait at once.
        upload_gib_per_owner: checkpoints that one owner has uploaded, and those on their way.
        upload_file_gib: largest file with weights of one.
        upload_data_gib: largest file of data that may be uploaded; all data of one owner may take
            as much as all checkpoints.
        database_mib_per_owner: what the requests and events of one owner's jobs may take.
        max_body_bytes: largest body of a request.
        requests_per_minute: of one token; others wait.
        failed_logins_per_minute: of one address.
        streams_per_token: event streams that one token may hold open.
        executor: where a search evaluates and times networks: ``local``, in its own process, or
            ``ray``, by workers of a cluster.
        evaluators: what searches of genes may name to know their networks, as
            ``NAME=package.module:Name``, see `nas.run.evaluators.opening`.
        ray_address: ``auto`` or ``HOST:PORT`` of the cluster's head; with ``ray`` a Ray of its own
            on the worker's machine unless given.
        webhook_private: whether webhooks may be addresses of this machine and of private networks.
        helper: whether networks are asked, checkpoints read and data prepared by `nas helper`,
            which shares the home, and not by processes of the API's own; see `service.children`.
        runner: module that does a job in a process of its own, run as ``python -m``; it has done
            it when it prints `service.worker.job_process.DONE` as a line and ends with 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(default_factory=default_home)
    database_url: str | None = Field(default=None, repr=False)
    database_timeout_s: Annotated[float, Field(gt=0, le=60)] = 5.0
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8321
    no_auth: bool = False
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    heartbeat_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    stale_s: Annotated[float, Field(gt=0, le=3600)] = 20.0
    poll_s: Annotated[float, Field(gt=0, le=60)] = 0.5
    stop_grace_s: Annotated[float, Field(ge=0, le=4)] = 2.0
    jobs_per_owner: Annotated[int, Field(ge=1)] = 2
    max_losses: Annotated[int, Field(ge=1)] = 10
    quota_gib: Annotated[float, Field(gt=0)] = 20.0
    quota_gib_per_owner: Annotated[float, Field(gt=0)] | None = None
    queued_per_owner: Annotated[int, Field(ge=1)] = 100
    database_mib_per_owner: Annotated[float, Field(gt=0)] = 256.0
    upload_gib_per_owner: Annotated[float, Field(ge=0)] = 20.0
    upload_file_gib: Annotated[float, Field(gt=0)] = 5.0
    upload_data_gib: Annotated[float, Field(gt=0)] = 2.0
    max_body_bytes: Annotated[int, Field(ge=1024)] = 1_000_000
    requests_per_minute: Annotated[int, Field(ge=1)] = 1200
    failed_logins_per_minute: Annotated[int, Field(ge=1)] = 20
    streams_per_token: Annotated[int, Field(ge=1)] = 16
    executor: ExecutorKind = "local"
    ray_address: str | None = None
    evaluators: tuple[str, ...] = ()
    webhook_private: bool = False
    helper: bool = False
    runner: str = "service.worker.job_process"

    @property
    def registered(self) -> dict[str, EvaluatorName]:
        """Name of an evaluator → what it stands for, as it was set; nothing is opened.

        Raises:
            UsageError: for an entry of another form.
        """
        found = {}
        for text in self.evaluators:
            name, equals, place = text.partition("=")
            if not (name.strip() and equals and place.strip()):
                raise UsageError(
                    f"{PREFIX}EVALUATORS takes NAME=package.module:Name, with commas between "
                    f"several; given {text!r}"
                )
            found[name.strip()] = EvaluatorName.read(place.strip())
        return found

    def check_evaluators(self) -> None:
        """See that what evaluators stand for is there, where a service begins.

        A worker begins without, for the jobs that name none or others.

        Raises:
            UsageError: for an entry of another form, or one that is not there.
        """
        for named in self.registered.values():
            named.here()

    @property
    def searching(self) -> ExecutorSettings:
        """Where searches are worked on.

        Raises:
            UsageError: when the two settings do not fit together.
        """
        return ExecutorSettings(self.executor, self.ray_address)

    @property
    def url(self) -> str:
        """The database, as SQLAlchemy wants it."""
        given = self.database_url or f"sqlite:///{self.home / 'service.db'}"
        for prefix in ("postgres://", "postgresql://"):
            if given.startswith(prefix):
                return "postgresql+psycopg://" + given.removeprefix(prefix)
        return given

    @property
    def runs(self) -> Path:
        """Where the run folders are."""
        return self.home / "runs"

    @property
    def uploads(self) -> Path:
        """Where the checkpoints are that were uploaded, by owner."""
        return self.home / "uploads"

    @property
    def uploaded_data(self) -> Path:
        """Where the data sets are that were uploaded, by owner."""
        return self.home / UPLOADED_DATA

    @property
    def logs(self) -> Path:
        """Where the processes of jobs write."""
        return self.home / "logs"

    @property
    def trash(self) -> Path:
        """Where folders are moved before their files are deleted."""
        return self.home / "trash"

    @property
    def cache(self) -> Path:
        """Where timings are kept between runs."""
        return self.home / "cache"

    @property
    def quota_bytes(self) -> int:
        """The quota in bytes."""
        return int(self.quota_gib * GIB)

    @property
    def owner_quota_bytes(self) -> int | None:
        """The quota of one owner in bytes, if there is one."""
        given = self.quota_gib_per_owner
        return None if given is None else int(given * GIB)

    @property
    def upload_owner_bytes(self) -> int:
        """What one owner's uploaded checkpoints may take, in bytes."""
        return int(self.upload_gib_per_owner * GIB)

    @property
    def upload_file_bytes(self) -> int:
        """The largest file with weights that may be uploaded, in bytes."""
        return int(self.upload_file_gib * GIB)

    @property
    def upload_data_bytes(self) -> int:
        """The largest file of data that may be uploaded, in bytes."""
        return int(self.upload_data_gib * GIB)

    @property
    def database_bytes_per_owner(self) -> int:
        """What one owner's jobs may take of the database, in bytes."""
        return int(self.database_mib_per_owner * MIB)

    @property
    def address(self) -> str:
        """Where the API is reached from this machine."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


def read_settings(environment: Mapping[str, str] | None = None, **given: Any) -> Settings:
    """Settings from the environment; what is given and not None takes precedence.

    Raises:
        UsageError: for a value that cannot be, or for no authentication on an open address.
    """
    environment = os.environ if environment is None else environment
    names = {name: PREFIX + name.upper() for name in Settings.model_fields}
    values: dict[str, Any] = {
        name: environment[variable] for name, variable in names.items() if environment.get(variable)
    }
    for name in ("allowed_hosts", "trusted_proxies", "evaluators"):
        if name in values:
            values[name] = tuple(one.strip() for one in values[name].split(","))
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][0])
        called = names.get(name, name) if given.get(name) is None else option(name)
        shown = "" if name == "database_url" else f" is {problem['input']!r}"
        raise UsageError(f"{called}{shown}: {problem['msg']}{HINTS.get(name, '')}") from None
    if settings.no_auth and not is_loopback(settings.host):
        raise UsageError(
            f"--no-auth lets everybody in who reaches {settings.host}; it is for loopback "
            "addresses such as 127.0.0.1 only: leave it out, and make tokens with nas token create"
        )
    if 2 * settings.heartbeat_s > settings.stale_s:
        raise UsageError(
            f"{PREFIX}HEARTBEAT_S is {settings.heartbeat_s:g}, and {PREFIX}STALE_S "
            f"{settings.stale_s:g}: jobs would be taken from workers that are well; let it be at "
            "most half of that"
        )
    _ = settings.searching, settings.registered  # refused here, not by the first job
    # A link stays one: jobs name files by this path, and a link may be what leads there.
    home = Path(os.path.abspath(settings.home.expanduser()))
    return settings.model_copy(update={"home": home})


def places_of(home: Path) -> list[str]:
    """What a home is called in messages: its path, and the one behind links; the longest first."""
    return sorted({str(home), str(home.resolve())}, key=len, reverse=True)


def without_home(text: str, home: Path) -> str:
    """A text that does not tell where the server keeps things."""
    for place in places_of(home):
        text = text.replace(place, "HOME")
    return text


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def environment_of_process(*, trusted: bool = False) -> dict[str, str]:
    """The environment of a further process of ours, which has to find our packages.

    Args:
        trusted: whether it has a use for the secrets of the database and of tokens.
    """
    known = {name: text for name, text in os.environ.items() if trusted or name not in SECRETS}
    root = str(Path(__file__).resolve().parents[1])
    return known | {"PYTHONPATH": os.pathsep.join(filter(None, [root, known.get("PYTHONPATH")]))}


def make_home(settings: Settings) -> None:
    """Make the home folder and what is in it; a new one is its owner's alone.

    A home that was there keeps its mode, since it may hold what others share. What is private in
    it is closed to others; the database closes its own files.

    Raises:
        UsageError: when a file is in the way of one of these folders.
    """
    try:
        settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (*PRIVATE, *SHARED):
            (settings.home / name).mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(
            f"the service needs the folder {error.filename}, but a file is in its way: move that "
            f"away, or name another home with --home or {PREFIX}HOME"
        ) from None
    for name in PRIVATE:
        _close(settings.home / name)


def _close(path: Path) -> None:
    mode = path.stat().st_mode
    if not mode & OTHERS:
        return
    try:
        path.chmod(mode & ~OTHERS)
        log.warning("was open to others on this machine and is closed now", extra={"path": path})
    except PermissionError:
        log.warning("is open to others on this machine; chmod go= it", extra={"path": path})
