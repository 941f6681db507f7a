"""How the training of one network from scratch went, epoch by epoch, as the run's events tell."""

from __future__ import annotations

from nas.results.contents import Epoch
from nas.run.events import Progress
from nas.run.folder import RunFolder
from nas.run.stages import RETRAIN
from search_spaces.json_text import UNREADABLE, finite_number


def training_curve(folder: RunFolder, network_id: str) -> tuple[Epoch, ...]:
    """The epochs of a network's training, in order; none where it was not trained.

    Of an epoch that was done again after an interruption the last counts.
    """
    found: dict[int, Epoch] = {}
    for _, event in folder.events(RETRAIN + network_id):
        if not isinstance(event, Progress):
            continue
        try:
            number, judged = int(event.done), event.values.get("validation_loss")
            found[number] = Epoch(
                number,
                finite_number(event.values["loss"]),
                None if judged is None else finite_number(judged),
                None,
            )
        except UNREADABLE:
            continue  # it tells of something else
    return tuple(found[number] for number in sorted(found))
