"""Opens a network of a run, trained from scratch or with inherited weights, and puts it to use.

Beside retraining, this is the one module that opens the test split: when a user asks for it by
name, of a network that is trained and chosen already. Nothing here writes into the run folder.

What needs torch is imported inside the functions, so that a wrong request is told at once.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nas.objectives import QUALITY
from nas.request.spec import SearchSpec
from nas.results.failures import failed
from nas.run.folder import RunFolder, resuming, supernet_gone
from nas.run.layout import (
    DATA_FILE,
    FRONT_FILE,
    OBSERVATIONS_FILE,
    SUPERNET_FILE,
    VERIFICATION_FILE,
    result_file,
    weights_file,
)
from nas.search.front import read_front, read_winner, winner
from search_spaces.architecture import Architecture, find_id
from search_spaces.errors import (
    ArchitectureError,
    DamagedRunError,
    DataError,
    DivergedError,
    NasError,
    UsageError,
)
from search_spaces.wording import OWN_DATA, mark

if TYPE_CHECKING:
    from supernet.beam_search import BeamSettings
    from supernet.extraction import Supernet
    from supernet.tasks.base import Scores, Task

SplitName = Literal["test", "valid"]


@dataclass(frozen=True, eq=False, slots=True)
class TrainedNetwork:
    """A network with weights.

    Attributes:
        architecture: the network.
        model: on its own, with the weights that its retraining kept, or the supernet that it
            inherits from; on `device`, in evaluation mode.
        device: ``cpu``, ``cuda`` or ``cuda:N``.
    """

    architecture: Architecture
    model: Supernet
    device: str


@dataclass(frozen=True, eq=False, slots=True)
class OpenedData:
    """The data of a run.

    Attributes:
        task: with its training and validation split.
        name: what they were called by: a path, or the name of built-in data.
        same: whether they are those that the run was made with.
        columns: role → column that they were prepared from, where that was told.
    """

    task: Task[Any, Any]
    name: str
    same: bool
    columns: Mapping[str, str] = field(default_factory=dict)


def choose_trained(folder: RunFolder, given: str | None) -> str:
    """The id of a network that was trained from scratch.

    Args:
        folder: the run.
        given: an id or how one begins; None for the only one, or of several the run's winner.

    Raises:
        UsageError: when there is none, or several without the winner, with what to type.
    """
    trained = [Path(name).parent.name for name in folder.found(result_file("*"))]
    run = shlex.quote(str(folder.path))
    if given is not None:
        return _find_trained(folder, given, trained)
    if not trained:
        read_front(folder)  # refused without one: there is nothing to train yet
        if folder.spec.evaluator is not None:
            raise UsageError(
                f"the networks of {run} are known to the evaluator of its search alone: none can "
                "be built or trained here"
            )
        raise UsageError(f"no network of {run} is {folder.spec.trained} yet; nas retrain {run}")
    if len(trained) > 1:
        with suppress(NasError):  # there is no front yet, or nothing on it meets the conditions
            chosen = winner(read_front(folder), folder.spec.pick, read_winner(folder)).id
            if chosen in trained:
                return chosen
        raise UsageError(
            f"{len(trained)} networks are {folder.spec.trained}; give one with --arch: "
            f"{', '.join(trained)}"
        )
    return trained[0]


def _find_trained(folder: RunFolder, given: str, trained: Sequence[str]) -> str:
    run = shlex.quote(str(folder.path))
    what = f"network of {run} that is {folder.spec.trained}"
    if any(one.startswith(given) for one in trained):
        return find_id(given, trained, what)
    front = [] if trained and not folder.has(FRONT_FILE) else read_front(folder).entries
    untrained = find_id(given, [*trained, *(entry.id for entry in front)], what)
    raise UsageError(
        f"the network {untrained} is on the front, but not {folder.spec.trained} yet: "
        f"nas retrain {run} --pick {untrained}"
    )


def measured_networks(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """What was measured of every network of a run, by id; ``architecture`` among it.

    Where a value should not be believed there is ``doubtful``, name → why. Of a baseline there are
    its costs alone: no search measures its quality.

    Raises:
        DamagedRunError: when a journal or the front cannot be read.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in (OBSERVATIONS_FILE, VERIFICATION_FILE):
        for line in folder.read_journal(name):
            values = {**line, **line.get("measured", {})}
            found[str(line["id"])] = found.get(str(line["id"]), {}) | values
    if folder.has(FRONT_FILE):
        for entry in read_front(folder).networks:
            values = {"architecture": entry.network.to_json(), **entry.measured}
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
    measured = measured_networks(folder).items()
    # Of a baseline costs alone are known, and it may lie outside the space of the supernet.
    known = [one for one, values in measured if QUALITY in values or failed(values)]
    if given is None:
        raise UsageError(
            f"--inherited needs --arch ID, one of the {len(known)} networks that the run has "
            f"measured; nas show {shlex.quote(str(folder.path))} lists those of its front"
        )
    return find_id(given, known, f"network that {folder.path} has measured")


def open_network(folder: RunFolder, network_id: str, device: str) -> TrainedNetwork:
    """Build a network and load its weights.

    Args:
        folder: the run.
        network_id: as `choose_trained` gives it.
        device: where to put it.

    Raises:
        UsageError: for a device that is not there.
        DamagedRunError: when the weights are missing, were changed, or are of another network.
    """
    from latency.device import describe_device
    from supernet.building import build_network
    from supernet.training.checkpoint import load

    describe_device(device)  # refuses one that is not there
    _check_weights(folder, f"retrain-{network_id}")
    file, space = folder.path / weights_file(network_id), folder.spec.space
    state = load(file)
    try:
        architecture = Architecture.from_json(state["architecture"])
        model = build_network(space.model, space.task, architecture).network
        model.load_state_dict(state["model"])
    except (KeyError, TypeError, RuntimeError, ArchitectureError) as error:
        reason = str(error).splitlines()[0]
        raise DamagedRunError(f"{file} holds no network of this run's space ({reason})") from error
    if architecture.id != network_id:
        raise DamagedRunError(f"{file} holds another network, {architecture.id}")
    return TrainedNetwork(architecture, model.to(device).eval(), device)


def open_inherited(folder: RunFolder, network_id: str, device: str) -> TrainedNetwork:
    """The supernet of a run, and one of its networks.

    Args:
        folder: the run.
        network_id: as `choose_inherited` gives it.
        device: where to put it.

    Raises:
        UsageError: when no supernet is trained yet, or never will be.
        DamagedRunError: when the weights are missing, were changed, or are of another space.
    """
    from supernet.building import build_supernet
    from supernet.training.checkpoint import load

    check_inherits(folder, network_id)
    file, space = folder.path / SUPERNET_FILE, folder.spec.space
    if not file.is_file():
        if folder.record("supernet") is not None:
            raise UsageError(supernet_gone(folder.path))
        raise UsageError(f"{folder.path} has no trained supernet yet; {resuming(folder.path)}")
    _check_weights(folder, "supernet")
    try:
        architecture = Architecture.from_json(measured_networks(folder)[network_id]["architecture"])
        space.encode([architecture])  # refuses a network of another space
        model = build_supernet(space)
        model.load_state_dict(load(file)["weights"])
    except (KeyError, TypeError, RuntimeError, ArchitectureError) as error:
        reason = str(error).splitlines()[0]
        raise DamagedRunError(f"{file} is no supernet of this run's space ({reason})") from error
    return TrainedNetwork(architecture, model.to(device).eval(), device)


def nothing_inherited(spec: SearchSpec) -> str | None:
    """Why the networks of a run inherit no weights; None where there is a supernet."""
    if not spec.trains_alone:
        return None
    return (
        "the run has no supernet to inherit weights from: each network was trained alone for "
        f"{spec.budget.own_updates:,} updates before it was observed, and those weights were not "
        "kept"
    )


def check_inherits(folder: RunFolder, network_id: str) -> None:
    """Refuse a run whose networks inherit no weights.

    Raises:
        UsageError: saying how the network gets some.
    """
    if reason := nothing_inherited(folder.spec):
        run = shlex.quote(str(folder.path))
        raise UsageError(f"{reason}; nas retrain {run} --pick {network_id} trains it from scratch")


def _check_weights(folder: RunFolder, stage: str) -> None:
    """Compare the files of a stage with their checksums, where it has ended."""
    from nas.run.evaluator import use_threads

    use_threads(folder.spec)
    record = folder.record(stage)
    damage = None if record is None else folder.damage(record)
    if damage is not None:
        raise DamagedRunError(f"{damage}; {resuming(folder.path)} makes it anew")


def open_data(folder: RunFolder, given: str | None) -> OpenedData:
    """Open the training and validation data of a run, wherever they are by now.

    Args:
        folder: the run.
        given: a folder, a file, or the word ``synthetic``, in place of the run's own; None for
            those.

    Raises:
        UsageError: when `given` does not exist.
        DataError: when the data are missing, damaged or do not fit the run's space.
        DamagedRunError: when the run does not tell what its data were.
    """
    from supernet.data.manifest import FILE_NAME as MANIFEST_FILE
    from supernet.data.manifest import read_manifest
    from supernet.data.synthetic import NAME as SYNTHETIC
    from supernet.tasks.opening import open_task

    spec = folder.spec
    dataset, path = spec.dataset, spec.data
    if given == SYNTHETIC:
        dataset, path = SYNTHETIC, None
    elif given is not None:
        path = str(Path(given).expanduser())
        if not Path(path).exists():
            raise UsageError(
                f"{mark('data')} {given} does not exist: give a folder made by nas data prepare"
            )
    elif path is not None and not Path(path).exists():
        raise DataError(
            f"the data of this run, {path}, are not there; "
            f"{mark(OWN_DATA, 'tell with --data DIR where they are on this machine')}"
        )
    task = open_task(spec.space, dataset, path, spec.seed)
    known = folder.read_json(DATA_FILE)
    prepared = path is not None and (Path(path) / MANIFEST_FILE).is_file()
    columns = read_manifest(Path(path)).columns if path is not None and prepared else {}
    return OpenedData(task, path or dataset, known.get("digest") == task.digest, columns)


def evaluate_network(
    network: TrainedNetwork,
    data: OpenedData,
    split: SplitName,
    beam: BeamSettings | None,
    max_tokens: int | None,
) -> Scores:
    """Score a network on a split.

    Args:
        network: what to score.
        data: the run's own.
        split: of the data.
        beam: how translations are searched for; None for other tasks, or the usual beam.
        max_tokens: tokens of a batch that is translated, over its beams; see `translate_rows`.

    Raises:
        DataError: when the data are not those of the run, or the test split cannot be read.
        UsageError: when a batch cannot hold a line.
        DivergedError: when the network's outputs are not finite numbers.
    """
    from latency.turns import computing
    from supernet.tasks.evaluation import score

    if not data.same:
        raise DataError(
            f"{data.name} does not hold the data that this run was made with, so that scores "
            "cannot be compared; "
            f"{mark(OWN_DATA, 'name with --data DIR the folder it was made with')}"
        )
    task = data.task
    with computing(network.device):
        scores = score(
            task,
            network.model,
            network.architecture,
            task.open_test() if split == "test" else task.valid,
            device=network.device,
            beam=beam,
            max_tokens=max_tokens,
        )
    if not math.isfinite(scores.values["loss"]):
        raise DivergedError(
            f"the loss of the network {network.architecture.id} is not a finite number; "
            "train it anew with a lower learning rate"
        )
    return scores


def check_vocabularies(folder: RunFolder, data: OpenedData) -> None:
    """See that text can become the token numbers that a translation network has learnt.

    Raises:
        DataError: when a vocabulary has another size than that of the run's data.
    """
    known, sizes = folder.read_json(DATA_FILE), data.task.describe()
    for side in ("source", "target"):
        name = f"{side}_vocab_size"
        if known.get(name) != sizes[name]:
            raise DataError(
                f"the {side} vocabulary of {data.name} has {sizes[name]} tokens, that of the data "
                f"the run was made with {known.get(name)}; "
                f"{mark(OWN_DATA, 'name those with --data DIR')}"
            )


def translate_text(
    network: TrainedNetwork,
    data: OpenedData,
    lines: Sequence[str],
    beam: BeamSettings,
    max_tokens: int | None,
) -> list[str]:
    """Translate lines, in their order; empty ones stay empty.

    Args:
        network: of a run for translation.
        data: whose tokenizers the network learnt with, see `check_vocabularies`.
        lines: without line ends.
        beam: how to search.
        max_tokens: tokens of a batch, over its beams; see `translate_rows`.

    Raises:
        UsageError: for a line that is too long, naming it; before anything is translated.
        DivergedError: when the network's outputs are not finite numbers.
    """
    from latency.turns import computing
    from supernet.sequence_models import TranslationModel
    from supernet.tasks.translating import StepwiseTranslator, translate_lines
    from supernet.tasks.translation import TranslationTask

    task, model = data.task, network.model
    assert isinstance(task, TranslationTask) and isinstance(model, TranslationModel)
    with computing(network.device):
        return translate_lines(
            StepwiseTranslator(model, network.architecture),
            lines,
            task.source_tokenizer,
            task.target_tokenizer,
            beam,
            max_tokens=max_tokens,
            device=network.device,
        )
