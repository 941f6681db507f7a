"""What the tuning of a network's retraining leaves in the run folder: plain JSON, no pickles.

Ray Tune keeps a storage of its own below the same folder while it works, and that is never read
back: a run folder may come from anywhere, and Tune's files are pickles. What has been tried is read
from here instead.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nas.run.folder import RunFolder
from nas.run.layout import (
    TRIAL_REPORTS,
    TRIAL_RESULT,
    TRIAL_SETTINGS,
    TRIAL_WEIGHTS,
    tuning_folder,
)
from search_spaces.errors import DamagedRunError

TUNED = ("learning_rate", "dropout", "warmup_share")

State = Literal["finished", "stopped", "diverged"]
Settings = Mapping[str, float]


@dataclass(frozen=True)
class TrialRecord:
    """A trial, as far as it came.

    Attributes:
        key: of its settings.
        settings: what it trains with in place of the run's own.
        reports: percent of the training done → the least by then of what trials are compared by.
        state: how it ended; None while it has not.
        loss: what it is compared by, see `SearchSpec.kept_by`; less is better, and
            None while it has not ended.
    """

    key: str
    settings: Settings
    reports: Mapping[int, float]
    state: State | None = None
    loss: float | None = None


class TrialFolders:
    """The folders of a network's trials, one for each setting that was begun.

    Args:
        folder: the run.
        network_id: of the front.
    """

    def __init__(self, folder: RunFolder, network_id: str) -> None:
        self._folder = folder
        self._name = tuning_folder(network_id)

    @property
    def path(self) -> Path:
        """All of them."""
        return self._folder.path / self._name

    def path_of(self, key: str) -> Path:
        """One of them."""
        return self.path / key

    def weights_of(self, key: str) -> Path:
        """The weights of a trial that finished, which are kept of the best.

        Raises:
            DamagedRunError: when they are gone.
        """
        file = self.path_of(key) / TRIAL_WEIGHTS
        if not file.exists():
            raise DamagedRunError(f"{file} is missing")
        return file

    def begin(self, settings: Settings) -> str:
        """Note that settings are being tried; their key."""
        values = {name: float(settings[name]) for name in TUNED}
        key = key_of(values)
        self._folder.write_json(f"{self._name}/{key}/{TRIAL_SETTINGS}", values)
        return key

    def report(self, key: str, done: int, loss: float) -> None:
        """Note how a trial goes."""
        self._folder.append(f"{self._name}/{key}/{TRIAL_REPORTS}", [{"done": done, "loss": loss}])

    def end(self, key: str, state: State, loss: float) -> None:
        """Note how a trial ended; what was noted first stays."""
        if not (self.path_of(key) / TRIAL_RESULT).exists():
            self._folder.write_json(
                f"{self._name}/{key}/{TRIAL_RESULT}", {"state": state, "loss": loss}
            )

    def records(self) -> list[TrialRecord]:
        """Every trial that was begun, by key.

        Raises:
            DamagedRunError: for a file that cannot be read.
        """
        found = sorted(self.path.glob(f"*/{TRIAL_SETTINGS}"))
        return [self.record(file.parent.name) for file in found]

    def record(self, key: str) -> TrialRecord:
        """One that was begun; errors as `records`."""
        name = f"{self._name}/{key}"
        try:
            settings = {
                one: float(self._folder.read_json(f"{name}/{TRIAL_SETTINGS}")[one]) for one in TUNED
            }
            lines = self._folder.read_journal(f"{name}/{TRIAL_REPORTS}")
            reports = {int(line["done"]): float(line["loss"]) for line in lines}
            if not (self.path_of(key) / TRIAL_RESULT).exists():
                return TrialRecord(key, settings, reports)
            data = self._folder.read_json(f"{name}/{TRIAL_RESULT}")
            if key_of(settings) != key or data["state"] not in get_args(State):
                raise ValueError("it is no record of a trial")
            return TrialRecord(key, settings, reports, data["state"], float(data["loss"]))
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedRunError(f"{self.path_of(key)} is damaged: {error}") from error


def key_of(settings: Settings) -> str:
    """A short name for settings, always the same."""
    text = json.dumps({name: float(settings[name]) for name in TUNED})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def best_of(records: list[TrialRecord]) -> TrialRecord | None:
    """The finished trial with the lowest loss; None where there is none."""
    finished = [record for record in records if record.state == "finished"]
    return min(finished, key=lambda record: (record.loss, record.key), default=None)


def summary(records: list[TrialRecord]) -> dict[str, Any]:
    """How many trials ended how."""
    states = [record.state for record in records]
    return {"trials": len(states), **{state: states.count(state) for state in get_args(State)}}
