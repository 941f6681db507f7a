"""Opens the supernet of a run for one of its networks: inherited weights, not trained further.

What needs torch is imported inside the functions, so that a wrong request is told at once.
"""

from __future__ import annotations

import difflib
from typing import Any

from nas.run.folder import RunFolder
from nas.run.layout import FRONT_FILE
from nas.search.front import read_front
from nas.trained import TrainedNetwork
from search_spaces.architecture import Architecture
from search_spaces.errors import ArchitectureError, DamagedRunError, UsageError

JOURNALS = ("observations.jsonl", "verification.jsonl")
WEIGHTS_FILE = "supernet/last.pt"


def measured_networks(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """What was measured of every network of a run, by id; ``architecture`` among it.

    Where a value should not be believed there is ``doubtful``, name → why.

    Raises:
        DamagedRunError: when a journal or the front cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in JOURNALS:
        for line in folder.read_journal(name, mend=False):
            values = {**line, **line.get("measured", {})}
            found[str(line["id"])] = found.get(str(line["id"]), {}) | values
    if (folder.path / FRONT_FILE).exists():
        for entry in read_front(folder).entries:
            values = {"architecture": entry.architecture.to_json(), **entry.measured}
            values |= {"doubtful": dict(entry.doubtful)}
            found[entry.id] = found.get(entry.id, {}) | values
    return found


def choose_inherited(folder: RunFolder, given: str | None) -> str:
    """The id of a network that the run has measured.

    Args:
        folder: the run.
        given: an id or how one begins.

    Raises:
        UsageError: when it is left out, or is that of no network or of several.
    """
    known = measured_networks(folder)
    if given is None:
        raise UsageError(
            f"--inherited needs --arch ID, one of the {len(known)} networks that the run has "
            f"measured; nas show {folder.path} lists those of its front"
        )
    found = sorted(one for one in known if given and one.startswith(given))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"several networks begin with {given}: {', '.join(found)}")
    nearest = difflib.get_close_matches(given, sorted(known), n=1, cutoff=0.0)
    hint = f"; the nearest id is {nearest[0]}" if nearest else ": it has measured none yet"
    raise UsageError(f"{given!r} is the id of no network that {folder.path} has measured{hint}")


def open_inherited(folder: RunFolder, network_id: str, device: str) -> TrainedNetwork:
    """The supernet of a run, and one of its networks.

    Args:
        folder: the run.
        network_id: as `choose_inherited` gives it.
        device: where to put it.

    Raises:
        DamagedRunError: when the weights are missing, were changed, or are of another space.
    """
    from nas.run.evaluator import use_threads
    from supernet.building import build_supernet
    from supernet.training.checkpoint import load

    use_threads(folder.spec)
    record = folder.record("supernet")
    damage = None if record is None else folder.damage(record)
    if damage is not None:
        raise DamagedRunError(f"{damage}; nas resume {folder.path} makes it anew")
    file, space = folder.path / WEIGHTS_FILE, folder.spec.space
    if not file.is_file():
        raise UsageError(f"{folder.path} has no trained supernet yet; nas resume {folder.path}")
    try:
        architecture = Architecture.from_json(measured_networks(folder)[network_id]["architecture"])
        space.encode([architecture])  # refuses a network of another space
        model = build_supernet(space)
        model.load_state_dict(load(file)["weights"])
    except (KeyError, TypeError, RuntimeError, ArchitectureError) as error:
        reason = str(error).splitlines()[0]
        raise DamagedRunError(f"{file} is no supernet of this run's space ({reason})") from error
    return TrainedNetwork(architecture, model.to(device).eval(), device)
