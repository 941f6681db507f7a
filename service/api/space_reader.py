"""Has what strangers send read, and networks asked, by other processes, which may be lost.

What a stranger sends is bounded before it is parsed (`search_spaces.toml.bounds`). Should there be
text within these bounds that still takes long, it costs a process (``python -m
service.api.space_reader``), and whoever sent it an answer that says so; nobody else waits for it.

Checkpoints are read there as well, because that takes libraries that the service does without.
Those that were put on the server by its owner may take their time, and so may searches that begin
with what was uploaded: that is read for the first time within `CHECK_CPU_S`, longer for large
ones, and `CHECK_MEMORY_MB`.

How long a search will take is told there, for which a few seconds are spent on training and timing.

Networks that were trained answer there (`service.api.trials`), since torch and their data are no
part of the service either, within `TRY_CPU_S` and `TRY_MEMORY_MB` beside their data and weights.

Such a process reads the service's settings from stdin, then one request a line. Once it has loaded
what that takes it says so, is told to go on, and writes an answer a line. No request may take more
processor time and memory than `CPU_S` and `MEMORY_MB`: the system ends the process that does. Where
it runs is told in `service.children`, and with whom it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nas.request.resolve import blaming
from nas.request.spec import SpaceSource, build_spec
from nas.run.folder import RunFolder
from nas.run.layout import weights_file
from search_spaces.errors import NasError
from search_spaces.toml.bounds import check_bounds
from service.api.catalog import Catalog
from service.api.problems import ProblemError
from service.api.schemas import (
    CheckpointOut,
    DurationOut,
    JobRequest,
    PredictionOut,
    PredictRequest,
    SpaceOut,
)
from service.api.specs import Search, needs_limits, read_search, read_space, refusing
from service.auth import Role, Token
from service.children import Child, LostError, NoHelperError, end_with_others
from service.process_limits import bytes_of, limited, mapped_bytes
from service.settings import MIB, Settings
from service.uploads import UnreadError

MODULE = "service.api.space_reader"
START_S = 60.0  # libraries have to be loaded
WALL_S = 10.0  # for a process that gets no processor
START_WALL_S = 300.0  # for the checksum of a large checkpoint, which the server's owner put there
CPU_S, MEMORY_MB = 2, 256  # for one request
CHECK_CPU_S, CHECK_MEMORY_MB = 20, 1024  # for reading an upload, beside its weights
CHECK_WALL_S = 120.0
LOOKED_AT, FETCHED = 500 * MIB, 100 * MIB  # of an upload's weights in a second: of both times more
TRY_CPU_S, TRY_MEMORY_MB = 60, 2048  # for asking a network, beside its data and weights
TRY_WALL_S = 120.0  # others may be timed meanwhile
_LENGTH = {"epochs", "epoch_updates", "max_updates", "check_every", "num_probes"}
# What of a budget says how often steps are done, and nothing of the steps.
AMOUNTS: Any = {
    "supernet": _LENGTH,
    "retrain": _LENGTH,
    "distil": {"updates"},
    "rounds": True,
    "own_updates": True,
    "own_seeds": True,
    "latency_samples": True,
    "verified": True,
}
MOST_CALIBRATIONS = 64  # that are kept, of a space with its data each
MOST_IDLE = 2  # processes that wait for something to do, with torch in their memory
TOO_MUCH = 75  # exit code
READY, GO = b"ready", b"go"
BUSY = "the machine is busy, and the answer took too long: try again in a moment"
AGAIN_S = "10"
KEPT_BYTES = 64 * 2**20  # more than that, for whatever reason, and a new one takes its place


class SpaceReader:
    """Checks spaces; those with a name here, those of strangers elsewhere.

    Args:
        settings: of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._catalog = Catalog(settings)
        self._guard = threading.Lock()
        self._idle: list[_Process] = []
        self._calibrations: dict[tuple[object, ...], dict[str, float]] = {}

    def search(self, given: JobRequest, viewer: Token) -> Search:
        """What a search needs.

        Args:
            given: the request.
            viewer: who asks, who sees his own checkpoints.

        Raises:
            ProblemError: naming the field at fault, or 503 on a busy machine.
        """
        if given.start is not None:
            if given.space_toml is not None:  # within bounds, unlike what follows
                self.check(SpaceSource(space_toml=given.space_toml, restrict=given.restrict))
            asked = given.model_dump(mode="json")
            with _lost_means():
                return Search(**self._ask("search", asked, START_WALL_S, viewer))
        if given.space_toml is None:
            return read_search(given, self._catalog.seen_by(viewer))
        return Search(**self._bounded("search", given, given.space_toml, viewer))

    def check(self, given: SpaceSource) -> SpaceOut:
        """What is told of a space that a request brings along.

        Raises:
            ProblemError: naming the field at fault.
        """
        assert given.space_toml is not None  # others are at hand
        return SpaceOut(**self._bounded("space", given, given.space_toml))

    def checkpoints(self) -> list[CheckpointOut]:
        """The checkpoints that the server's owner put there.

        Raises:
            ProblemError: 503 on a busy machine.
        """
        with _lost_means():
            answered = self._ask("checkpoints", {}, START_WALL_S)
        return [CheckpointOut(**one) for one in answered["checkpoints"]]

    def check_upload(self, folder: Path, size: int) -> tuple[str, str]:
        """Family and task of a checkpoint that somebody has uploaded.

        Args:
            folder: with all its files.
            size: bytes of them.

        Raises:
            ProblemError: 422 with what is wrong with it.
            UnreadError: on a busy machine.
        """
        told = (
            f"reading this checkpoint took more than {_check_cpu_s(size)} s or {CHECK_MEMORY_MB} "
            "MB beside its weights, which none needs"
        )
        asked, wait_s = {"folder": str(folder), "size": size}, CHECK_WALL_S + size / FETCHED
        try:
            with _lost_means(told):
                found = self._ask("upload", asked, wait_s)
        except ProblemError as error:
            raise UnreadError(BUSY) if error.status == 503 else error from error
        return found["family"], found["task"]

    def predict(self, folder: RunFolder, network: str, given: PredictRequest) -> PredictionOut:
        """What a network of a run that was trained from scratch answers.

        Raises:
            ProblemError: 422 with what is wrong with the input, the run or its data, 503 on a busy
                machine.
        """
        data = folder.spec.data
        places = [folder.path / weights_file(network), *([] if data is None else [Path(data)])]
        asked = {
            **given.model_dump(mode="json"),
            "folder": str(folder.path),
            "network": network,
            "size": sum(map(bytes_of, places)),
        }
        told = (
            f"the network gave no answer within {TRY_CPU_S} s of computing and {TRY_MEMORY_MB} MB "
            "beside its data; use nas predict, which has no such limits"
        )
        with _lost_means(told):
            return PredictionOut(**self._ask("predict", asked, TRY_WALL_S))

    def duration(self, search: Search) -> DurationOut:
        """How long a search would take here; calibrates what is not known of its space yet.

        Raises:
            ProblemError: 422 when calibrating takes too much, 503 on a busy machine.
        """
        spec = build_spec(**json.loads(search.spec))
        steps = spec.budget.model_dump_json(exclude=AMOUNTS)
        begun = None if spec.start is None else spec.start.folder
        key = (spec.space_toml, spec.dataset, spec.data, begun, spec.device, spec.quality, steps)
        size = 0 if spec.data is None else bytes_of(Path(spec.data))
        asked = {"spec": search.spec, "known": self._calibrations.get(key, {}), "size": size}
        told = (
            f"calibrating took more than {TRY_CPU_S} s of computing or {TRY_MEMORY_MB} MB beside "
            "the data; nas search tells the duration without such limits"
        )
        with _lost_means(told):
            found = self._ask("duration", asked, TRY_WALL_S)
        with self._guard:
            self._calibrations.pop(key, None)
            self._calibrations[key] = found.pop("calibration")
            while len(self._calibrations) > MOST_CALIBRATIONS:
                del self._calibrations[next(iter(self._calibrations))]
        return DurationOut(**found)

    def close(self) -> None:
        """End the processes."""
        with self._guard:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _bounded(
        self, kind: str, given: SpaceSource, text: str, viewer: Token | None = None
    ) -> dict[str, Any]:
        """As `_ask`, of a request that brings a space along."""
        with refusing(), blaming("space_toml"):
            check_bounds(text, "space_toml")
        told = (
            f"reading this space took more than {CPU_S} s or {MEMORY_MB} MB, which no space "
            "needs: leave something out"
        )
        with _lost_means(told, "/space_toml"):
            return self._ask(kind, given.model_dump(mode="json"), WALL_S, viewer)

    def _ask(
        self, kind: str, given: dict[str, Any], wait_s: float, viewer: Token | None = None
    ) -> dict[str, Any]:
        """What another process finds.

        Raises:
            ProblemError: naming the field at fault.
            LostError: when there is no answer.
        """
        request = {"kind": kind, "given": given, "viewer": viewer and asdict(viewer)}
        try:
            process = self._ready_for(json.dumps(request).encode())
            answer = process.answer(wait_s)
        except NoHelperError as error:
            raise ProblemError(503, error.marked, headers={"Retry-After": AGAIN_S}) from error
        self._give_back(process, spent=answer["spent"])
        if "problem" in answer:
            raise ProblemError(*answer["problem"])
        found: dict[str, Any] = answer["found"]
        return found

    def _ready_for(self, request: bytes) -> _Process:
        """A process that has read the request and loaded what it takes, which is never at fault.

        One that was lost while it waited for something to do is replaced.
        """
        while True:
            with self._guard:
                process = self._idle.pop() if self._idle else None
            if process is None:
                process = _Process(self._settings)
                process.load(request)
                return process
            with suppress(LostError, NoHelperError):
                process.load(request)
                return process

    def _give_back(self, process: _Process, *, spent: bool) -> None:
        with self._guard:
            kept = not spent and len(self._idle) < MOST_IDLE
            if kept:
                self._idle.append(process)
        if not kept:
            process.end()


@contextmanager
def _lost_means(detail: str | None = None, field: str | None = None) -> Iterator[None]:
    """Tell of a process that was lost.

    Args:
        detail: what took too much, where the system has ended it; None where it has no limits.
        field: of the request that is at fault then.

    Raises:
        ProblemError: 422 in its place; 503 when nobody who asks is at fault.
        LostError: when it is our own mistake.
    """
    try:
        yield
    except LostError as error:
        if error.code is not None and 0 < error.code != TOO_MUCH:
            raise
        if error.code is None or detail is None:
            raise ProblemError(503, BUSY, headers={"Retry-After": AGAIN_S}) from error
        raise ProblemError(422, detail, field) from error


class _Process:
    """A process that answers one request at a time."""

    def __init__(self, settings: Settings) -> None:
        self.child = Child(settings, MODULE)
        answered = settings.model_copy(update={"database_url": None})
        self._exchange(answered.model_dump_json().encode(), START_S)

    def load(self, request: bytes) -> None:
        """Have it load the libraries that a request takes.

        Raises:
            LostError: when it is lost; without a code when the system has ended it.
            NoHelperError: when its helper is lost.
        """
        try:
            self._exchange(request, START_S)
        except LostError as error:
            raise LostError(error.code if error.code and error.code > 0 else None) from error

    def answer(self, wait_s: float) -> dict[str, Any]:
        """What it says to the request that it was told last.

        Raises:
            LostError: when it says nothing.
            NoHelperError: when its helper is lost.
        """
        found: dict[str, Any] = json.loads(self._exchange(GO, wait_s))
        return found

    def end(self) -> None:
        """End it at once."""
        self.child.end()

    def _exchange(self, line: bytes, wait_s: float) -> bytes:
        """Send a line and wait for one; a process that gives none is ended."""
        self.child.send(line)
        try:
            return self.child.read(wait_s)
        except (LostError, NoHelperError):
            self.end()
            raise


# -- in the other process ------------------------------------------------------------------------


def answer(kind: str, given: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """What comes of a request.

    Args:
        kind: ``space``, which is described, ``search``, whose spec is made, ``checkpoints``,
            which are listed, ``upload``, which is read, ``predict``, a network that is asked, or
            ``duration``, a search whose duration is told.
        given: the request as JSON.
        catalog: spaces and data sets of the server.

    Returns:
        ``found``, or what is wrong with it as the arguments of a `ProblemError` under ``problem``.
    """
    try:
        if kind == "checkpoints":
            listed = [CheckpointOut.of(one).model_dump() for one in catalog.checkpoints()]
            return {"found": {"checkpoints": listed}}
        if kind == "upload":
            return {"found": _read_upload(Path(given["folder"]))}
        if kind == "predict":
            from service.api.trials import ask_network  # brings along torch

            return {"found": ask_network(given)}
        if kind == "duration":
            return {"found": _duration(given, catalog)}
        if kind == "space":
            space = read_space(SpaceSource(**given), catalog)
            return {"found": SpaceOut.of(space).model_dump(mode="json")}
        return {"found": read_search(JobRequest(**given), catalog).__dict__}
    except ProblemError as error:
        field = error.errors[0].field if error.errors else None
        return {"problem": [error.status, error.detail, field]}
    except NasError as error:
        return {"problem": [422, error.marked, None]}


def _seen(catalog: Catalog, viewer: dict[str, Any] | None) -> Catalog:
    if viewer is None:
        return catalog
    return catalog.seen_by(Token(**{**viewer, "role": Role(viewer["role"])}))


def _duration(given: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    from nas.stages.telling import duration_of  # brings along torch

    told = duration_of(build_spec(**json.loads(given["spec"])), given["known"])
    reason = told.reason
    for place in catalog.hidden:
        reason = reason.replace(place, "")
    return {
        "seconds": told.seconds,
        "stages": [asdict(one) for one in told.stages],
        "about": told.about,
        "reason": reason,
        "warning": told.warning,
        "calibration": dict(told.calibration),
    }


def _read_upload(folder: Path) -> dict[str, str]:
    from supernet.pretrained.checkpoint import read_checkpoint  # brings along torch

    try:
        found = read_checkpoint(folder)
        found.check_weights()
    except NasError as error:
        text = error.marked.replace(f"{folder}/", "").replace(str(folder), "the upload")
        raise ProblemError(422, f"this checkpoint cannot be used: {text}") from error
    return {"family": found.family, "task": found.task}


def _check_cpu_s(size: int) -> int:
    """Seconds of computing that reading an upload of so many bytes may take."""
    return CHECK_CPU_S + size // LOOKED_AT


def _loaded(request: dict[str, Any]) -> tuple[int, int] | None:
    """Load what an answer takes, which is not the request's fault; its bounds, None without any."""
    kind, given = request["kind"], request["given"]
    if kind == "checkpoints" or given.get("start") is not None:
        return None  # the server owner's, or read within bounds when it came: it takes its time
    if kind == "upload":
        importlib.import_module("supernet.pretrained.checkpoint")
        importlib.import_module("safetensors.torch")
        weights_mb = given["size"] // MIB  # which are mapped, twice while a file is opened
        return _check_cpu_s(given["size"]), CHECK_MEMORY_MB + 2 * weights_mb
    if kind == "predict":
        importlib.import_module("service.api.trials").load_libraries()
        return TRY_CPU_S, TRY_MEMORY_MB + given["size"] // MIB
    if kind == "duration":
        importlib.import_module("nas.stages.telling")
        return TRY_CPU_S, TRY_MEMORY_MB + given["size"] // MIB
    if needs_limits(given):
        importlib.import_module("nas.stages.feasibility")
    return CPU_S, MEMORY_MB


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Answer until nobody is there to ask."""
    os.nice(5)  # who only looks at something goes first
    end_with_others()
    catalog = Catalog(Settings.model_validate_json(sys.stdin.buffer.readline()))
    _say(READY)
    began = mapped_bytes()
    for line in sys.stdin.buffer:
        request = json.loads(line)
        bounds = _loaded(request)
        _say(READY)
        if sys.stdin.buffer.readline() != GO + b"\n":
            return
        seen = _seen(catalog, request["viewer"])
        try:
            with nullcontext() if bounds is None else limited(*bounds):
                answered = answer(request["kind"], request["given"], seen)
        except MemoryError:
            os._exit(TOO_MUCH)
        if bounds is None or request["kind"] in ("upload", "predict", "duration"):
            began = max(began, mapped_bytes())  # libraries, and tables that they keep
        answered["spent"] = mapped_bytes() > began + KEPT_BYTES
        _say(json.dumps(answered).encode())


if __name__ == "__main__":
    main()
