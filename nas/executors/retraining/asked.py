"""What was asked of the training of one network, in place of what the run says of all."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from nas.run.folder import RunFolder
from nas.run.layout import asked_file
from search_spaces.errors import DamagedRunError
from supernet.training_settings import LARGEST_COUNT, TrainingSettings

MOST_TRIALS = 10_000
MOST_EPOCHS = LARGEST_COUNT


@dataclass(frozen=True)
class AskedTraining:
    """See above; 0 stands for what the run says.

    Attributes:
        trials: settings to be tried; the run's own are taken where none are.
        epochs: of the training.
    """

    trials: int = 0
    epochs: int = 0

    def settings(self, own: TrainingSettings) -> TrainingSettings:
        """Those of a training, from the run's own.

        The learning rate comes to its end with the epochs asked for, and a largest number of
        updates, which would end them earlier, is gone.
        """
        return replace(own, epochs=self.epochs, max_updates=0) if self.epochs else own


def read_asked(folder: RunFolder, network_id: str) -> AskedTraining:
    """What was asked of a network.

    Raises:
        DamagedRunError: when the note cannot be read.
    """
    name = asked_file(network_id)
    if not (folder.path / name).exists():
        return AskedTraining()
    data = folder.read_json(name)
    most = {"trials": MOST_TRIALS, "epochs": MOST_EPOCHS}
    if not isinstance(data, dict) or not data or not data.keys() <= most.keys():
        raise _damaged(folder, network_id)
    for key, value in data.items():
        if not isinstance(value, int) or not 1 <= value <= most[key]:
            raise _damaged(folder, network_id)
    return AskedTraining(**data)


def note_asked(folder: RunFolder, network_id: str, asked: AskedTraining) -> None:
    """Note what is asked of a network; nothing takes the note back."""
    given = {name: value for name, value in vars(asked).items() if value}
    if given:
        folder.write_json(asked_file(network_id), given)
    else:
        (folder.path / asked_file(network_id)).unlink(missing_ok=True)


def _damaged(folder: RunFolder, network_id: str) -> DamagedRunError:
    return DamagedRunError(
        f"{folder.path / asked_file(network_id)} is damaged; nas retrain "
        f"{shlex.quote(str(folder.path))} --pick {network_id} with --tune N or --epochs N writes it"
        " anew"
    )
