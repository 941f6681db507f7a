"""How the training of one network from scratch went, epoch by epoch, as the run's events tell."""

from __future__ import annotations

from nas.results.contents import Epoch
from nas.run.folder import RunFolder
from nas.run.layout import EVENTS_FILE
from nas.run.stages import RETRAIN
from search_spaces.files import read_lines
from search_spaces.json_text import finite_number, parse_json


def training_curve(folder: RunFolder, network_id: str) -> tuple[Epoch, ...]:
    """The epochs of a network's training, in order; none where it was not trained.

    Of an epoch that was done again after an interruption the last counts. Lines that cannot be read
    are passed over, as everywhere in a run's diary.
    """
    stage = RETRAIN + network_id
    found: dict[int, Epoch] = {}
    for line in read_lines(folder.path / EVENTS_FILE):
        if stage.encode() not in line:  # there may be tens of thousands of others
            continue
        try:
            event = parse_json(line.decode())
            if event["event"] != "Progress" or event["stage"] != stage:
                continue
            values, number = event["values"], int(event["done"])
            judged = values.get("validation_loss")
            found[number] = Epoch(
                number,
                finite_number(values["loss"]),
                None if judged is None else finite_number(judged),
                None,
            )
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
    return tuple(found[number] for number in sorted(found))
