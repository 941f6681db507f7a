"""What is registered on the server: search spaces, data sets and device profiles, by name.

Requests name these, never paths. Spaces are the shipped ones and the TOML files in ``HOME/spaces``;
data sets are the built-in ones and the folders that ``nas data prepare`` made in ``HOME/data``,
where the files of data sets that need one are as well; device profiles are the files that ``nas
profile`` made in ``HOME/profiles``; checkpoints are folders in ``HOME/checkpoints``, and those that
somebody has uploaded (`service.uploads`), of which each sees his own.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from latency.workload import Workload
from nas.request.fields import nearest
from nas.request.resolve import AttachedProfile, StartingPoint
from nas.request.spec import SYNTHETIC, SearchSpec
from nas.run.layout import DEVICE_PROFILE_FILE
from search_spaces.architecture import Architecture
from search_spaces.data_keys import RECALL
from search_spaces.errors import DataError, NasError, SpaceFileError, UnknownNameError, UsageError
from search_spaces.genes import GeneSpace, given_genes
from search_spaces.loading import load_space, parse_space, space_names
from search_spaces.space import SearchSpace
from search_spaces.toml.source import read_text
from search_spaces.wording import mark
from service.auth import Token
from service.data_uploads import DataUploads
from service.settings import Settings
from service.uploads import NAME, Uploads
from supernet.data.manifest import FILE_NAME, Manifest, read_manifest
from supernet.data.prepared import check_manifest_fits
from supernet.data.sources import SOURCES, check_built_in_fits


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set that requests may name.

    Attributes:
        name: of the data set.
        kind: ``built-in``, ``generated`` or ``prepared``.
        path: of a prepared folder.
        manifest: what that says of itself.
        problem: why it cannot be used.
    """

    name: str
    kind: str
    path: Path | None = None
    manifest: Manifest | None = None
    problem: str | None = None

    @property
    def task(self) -> str | None:
        """What prepared data are for."""
        return None if self.manifest is None else self.manifest.task

    @property
    def examples(self) -> dict[str, int] | None:
        """Split → number of examples, of prepared data."""
        if self.manifest is None:
            return None
        return {name: split.examples for name, split in self.manifest.splits.items()}

    def suits(self, space: SearchSpace) -> bool:
        """Whether networks of a space can read it, as far as that is told before it is opened."""
        if self.problem is not None:
            return False
        try:
            if self.manifest is None:
                check_built_in_fits(self.name, space)
            else:
                check_manifest_fits(self.name, self.manifest, space)
        except DataError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that the server's owner put there for searches.

    Attributes:
        name: of its folder.
        family: ``model_type``; None where it cannot be used, as its task.
        task: what its network does.
        problem: why it cannot be used.
    """

    name: str
    family: str | None = None
    task: str | None = None
    problem: str | None = None


class Catalog:
    """The spaces, data sets and checkpoints of a service, as somebody sees them.

    Args:
        settings: of the service.
    """

    def __init__(self, settings: Settings) -> None:
        self._uploads = Uploads(settings)
        self._uploaded_data = DataUploads(settings)
        self._uploads_root = settings.uploads
        self._uploaded_data_root = settings.uploaded_data
        self._viewer: Token | None = None
        self._home = settings.home
        self._spaces = settings.home / "spaces"
        self._data = settings.home / "data"
        self._profiles = settings.home / "profiles"
        self._checkpoints = settings.home / "checkpoints"
        self._evaluators = settings.registered

    def seen_by(self, viewer: Token) -> Catalog:
        """The same with the checkpoints and data sets that somebody has uploaded."""
        found = copy.copy(self)
        found._viewer = viewer
        return found

    def space_names(self) -> list[str]:
        """Names of all spaces."""
        own = {file.stem for file in self._own_spaces()}
        return sorted({*space_names(), *own})

    def architecture(self, name: str) -> Architecture:
        """No file of a server is one of its clients'.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"baseline {name[:100]!r} is no word that is known: give plain, none, or an "
            "architecture as JSON; nas submit --baseline FILE sends the one of a file"
        )

    def space(self, name: str) -> SearchSpace:
        """The space of that name; one of the server's own hides a shipped one.

        Raises:
            UnknownNameError: when there is none.
            SpaceFileError: when the server's own cannot be read.
        """
        files = {file.stem: file for file in self._own_spaces()}
        if name in files:
            return parse_space(read_text(files[name]), name)
        if name not in space_names():
            raise _unknown("space", name, self.space_names())
        return _shipped(name)

    def genes(self, name: str) -> GeneSpace:
        """A space of genes among the server's own.

        Raises:
            UnknownNameError: when there is none of that name.
            SpaceFileError: when it cannot be read.
        """
        files = {file.stem: file for file in self._own_spaces()}
        if name not in files:
            raise _unknown("space of genes", name, files)
        return given_genes(read_text(files[name]), name)

    def evaluator_names(self) -> list[str]:
        """The evaluators that the administrator registered."""
        return sorted(self._evaluators)

    def evaluator(self, name: str) -> str:
        """What is registered under that name: nobody else says what code is run here.

        Raises:
            UnknownNameError: when nothing is.
            DataError: when its file or program has gone.
        """
        if name not in self._evaluators:
            raise _unknown("evaluator", name, self._evaluators)
        try:
            return self._evaluators[name].here()
        except UsageError as error:  # which names a path of the server
            raise DataError(
                f"the evaluator {name} cannot be used: its file or program is gone from the "
                "server; tell the administrator"
            ) from error

    def readable_spaces(self) -> list[SearchSpace]:
        """All spaces that can be read, by name."""
        found = []
        for name in self.space_names():
            try:
                found.append(self.space(name))
            except SpaceFileError:
                continue  # an operator's file that is wrong must not hide the others
        return found

    def datasets(self) -> list[Dataset]:
        """All data sets, by name; prepared ones hide built-in ones, one's own both."""
        found = {
            name: Dataset(name, "built-in")
            for name, source in SOURCES.items()
            if not source.needs_path and name != SYNTHETIC
        }
        found[RECALL] = Dataset(RECALL, "built-in")
        found[SYNTHETIC] = Dataset(SYNTHETIC, "generated")
        if self._data.is_dir():
            for folder in sorted(self._data.iterdir()):
                if _inside(folder, self._data) and (folder / FILE_NAME).is_file():
                    found[folder.name] = self._prepared(folder)
        if self._viewer is not None:
            for name, folder in self._uploaded_data.names(self._viewer).items():
                found[name] = self._prepared(folder)
        return [found[name] for name in sorted(found)]

    def spaces_for(self, dataset: Dataset) -> list[SearchSpace]:
        """The spaces whose networks can read a data set, by name."""
        return [space for space in self.readable_spaces() if dataset.suits(space)]

    def dataset(self, name: str, file: Path | None = None) -> Path | None:
        """Where a data set is; `file` where that was named.

        Raises:
            UnknownNameError: when there is none of that name.
            DataError: when it is damaged.
        """
        if file is not None:
            if name not in SOURCES:
                raise _unknown("data set that is read from a file", name, SOURCES)
            return file
        known = {dataset.name: dataset for dataset in self.datasets()}
        if name not in known:
            raise _unknown("data set", name, known)
        if known[name].problem is not None:
            raise DataError(f"the data set {name} cannot be used; prepare it anew")
        return known[name].path

    def data_names(self) -> list[str]:
        """What there is in the folder of data."""
        return _names(self._data)

    def data(self, name: str) -> Path:
        """A prepared folder, or the file of a data set.

        Raises:
            UnknownNameError: when there is none.
            UsageError: for one that the viewer has uploaded.
            DataError: when the folder was not prepared, or is damaged.
        """
        if name not in self.data_names():
            if self._viewer is not None and name in self._uploaded_data.names(self._viewer):
                raise UsageError(
                    f"{name} is a data set that you uploaded: give it with {mark('dataset')} "
                    f"instead of {mark('data')}"
                )
            raise _unknown("folder or file of data", name, [*self.data_names(), SYNTHETIC])
        path = self._named(self._data / name)
        return (self.dataset(name) or path) if path.is_dir() else path

    def made(self, data: str, hours: float | None, device: str) -> str:
        """Nothing: how fast networks are trained is not found out while a request waits.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "no space is given: name one, or bring one along as space_toml; nas space new --data "
            "makes one for data, on the machine that has them"
        )

    def texts(self, path: Path, begun: StartingPoint) -> Path:
        """Data as they are: on a server they are prepared before they are put there."""
        return path

    @property
    def hidden(self) -> tuple[str, ...]:
        """Beginnings of paths that clients are not told."""
        owner = "" if self._viewer is None else f"{self._viewer.name}/"
        private = self._uploads_root, self._uploaded_data_root
        places = [f"{one}/" for root in private for one in (root.resolve(), root)]
        own = [f"{place}{owner}" for place in places]
        return f"{self._checkpoints.resolve()}/", f"{self._checkpoints}/", *own, *places

    def checkpoint_names(self) -> list[str]:
        """The checkpoints that the viewer's searches may begin with; others' as OWNER/NAME."""
        own: list[str] = []
        others: list[str] = []
        seen = [] if self._viewer is None else self._uploads.seen_by(self._viewer)
        for one in seen:
            mine = self._viewer is not None and one.owner == self._viewer.name
            (own if mine else others).append(one.name if mine else one.address)
        return [*sorted({*_names(self._checkpoints), *own}), *others]

    def start(self, name: str) -> StartingPoint:
        """The checkpoint of that name; one's own hides one of the server's.

        Raises:
            UnknownNameError: when there is none.
            DataError: when it cannot be read.
        """
        from nas.run.checkpoint import starting_point  # brings along torch

        folder = self.checkpoint_folder(name)
        try:
            begun = starting_point(folder)
        except NasError as error:
            raise DataError(self._problem(name, folder, error)) from error
        start = begun.start.model_copy(update={"folder": str(self._named(folder))})
        return replace(begun, start=start)

    def _named(self, path: Path) -> Path:
        """A path as specs of jobs have it: below the home's own path, behind all other links."""
        real, home = path.resolve(), self._home.resolve()
        return self._home / real.relative_to(home) if real.is_relative_to(home) else real

    def checkpoints(self) -> list[Checkpoint]:
        """The server's checkpoints, by name, with what their files say; weights are not read."""
        from supernet.pretrained.checkpoint import read_checkpoint  # brings along torch

        found = []
        for name in _names(self._checkpoints):
            try:
                folder = self.checkpoint_folder(name)
                one = read_checkpoint(folder)
            except NasError as error:
                problem = self._problem(name, self._checkpoints / name, error)
                found.append(Checkpoint(name, problem=problem))
            else:
                found.append(Checkpoint(name, one.family, one.task))
        return found

    def checkpoint_folder(self, name: str) -> Path:
        """The folder of a checkpoint, all of whose files are among the server's checkpoints.

        Raises:
            UnknownNameError: when there is none of that name.
            DataError: when a file lies elsewhere.
        """
        viewer = self._viewer
        mine = None if viewer is None else self._uploads.find(viewer, name)
        if mine is not None:
            return mine.folder
        if name not in _names(self._checkpoints):
            raise _unknown("checkpoint", name, self.checkpoint_names())
        folder, root = (self._checkpoints / name).resolve(), self._checkpoints.resolve()
        for file in folder.rglob("*"):
            if not file.resolve().is_relative_to(root):
                raise DataError(
                    f"{file.relative_to(folder)} lies elsewhere: copy it into the folder"
                )
        return folder

    def _prepared(self, folder: Path) -> Dataset:
        try:
            manifest = read_manifest(folder)
        except DataError as error:
            return Dataset(folder.name, "prepared", path=folder, problem=str(error))
        return Dataset(folder.name, "prepared", self._named(folder), manifest)

    @staticmethod
    def _problem(name: str, folder: Path, error: NasError) -> str:
        """What is wrong with a checkpoint, without the server's paths."""
        text = error.marked
        for place in (folder.resolve(), folder):
            text = text.replace(f"{place}/", "").replace(str(place), name)
        return f"the checkpoint {name} cannot be used: {text}"

    def profile_names(self) -> list[str]:
        """The device profiles."""
        return _names(self._profiles)

    def device_profile(
        self, name: str, space: SearchSpace, again: str, workload: Workload | None
    ) -> AttachedProfile:
        """The part of a device profile that a search is for.

        Raises:
            UnknownNameError: when there is none of that name.
            NasError: when it cannot be used or does not fit.
        """
        from nas.profiling.device_profile import read_device_profile  # brings along predictors

        if name not in self.profile_names():
            raise _unknown("device profile", name, self.profile_names())
        return read_device_profile(self._profiles / name).attached(space, again, workload)

    def attached(self, request: Mapping[str, Any], spec: SearchSpec) -> dict[str, str]:
        """The files that the run folder of a search needs besides its spec.

        Raises:
            NasError: when the device profile is gone or was changed since it was asked for.
        """
        if spec.device_profile is None:
            return {}
        name, space, again = str(request["device_profile"]), spec.space, "submit the search again"
        found = self.device_profile(name, space, again, Workload.from_mapping(space.workload))
        if found.digest != spec.device_profile:
            raise DataError(f"the device profile {name} has changed since; {again}")
        return {DEVICE_PROFILE_FILE: found.text}

    def _own_spaces(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self._spaces))
        except FileNotFoundError:
            return []
        files = [self._spaces / name for name in names if name.endswith(".toml")]
        return [file for file in files if NAME.fullmatch(file.stem) and _inside(file, self._spaces)]


@cache
def _shipped(name: str) -> SearchSpace:
    """Shipped spaces do not change while the service runs."""
    return load_space(name)


def _inside(path: Path, root: Path) -> bool:
    """Whether a path is really in the folder it seems to be in."""
    return NAME.fullmatch(path.name) is not None and path.resolve().is_relative_to(root.resolve())


def _names(folder: Path) -> list[str]:
    """The names in a folder that requests may give."""
    return (
        sorted(one.name for one in folder.iterdir() if _inside(one, folder))
        if folder.is_dir()
        else []
    )


def _unknown(what: str, name: str, known: Collection[str]) -> UnknownNameError:
    there = ", ".join(sorted(known)) or "none"
    return UnknownNameError(
        f"there is no {what} named {name[:100]!r} on this server (there are {there})"
        f"{nearest(name, known)}"
    )
