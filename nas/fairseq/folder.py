"""The folder in which a network of a run is trained with fairseq.

``RUN/fairseq/ID`` can be carried elsewhere: it holds the network, the plug-in with all it needs,
the data in fairseq's form, and the exact commands. What needs torch is imported inside the
functions, so that a wrong request is told at once.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nas.fairseq.binarised import write_data_bin
from nas.fairseq.data import DataBin, is_data_bin
from nas.fairseq.plugin import USER_DIR, write_plugin
from nas.run.folder import RunFolder
from nas.run.layout import fairseq_folder
from nas.search.front import FrontEntry, pick, read_front
from search_spaces.errors import UsageError
from search_spaces.files import building_folder, write_atomically, write_json

if TYPE_CHECKING:
    from nas.stages.base import Run
    from supernet.tasks.translation import TranslationTask

DATA_FOLDER = "data-bin"
DIGEST_FILE = "digest.txt"
CHECKPOINTS = "checkpoints"
BEST = f"{CHECKPOINTS}/checkpoint_best.pt"

# Section 6.1 of the mFormer paper (arXiv 2207.13955). Its "min learning rate" is --stop-min-lr
# since fairseq 0.10. It names no dropout and no clipping.
SETTINGS = (
    ("optimizer", "adam"),
    ("adam-betas", "(0.9, 0.998)"),
    ("weight-decay", "0.1"),
    ("criterion", "label_smoothed_cross_entropy"),
    ("label-smoothing", "0.1"),
    ("lr-scheduler", "inverse_sqrt"),
    ("lr", "0.0007"),
    ("warmup-updates", "4000"),
    ("warmup-init-lr", "1e-07"),
    ("stop-min-lr", "1e-09"),
    ("max-tokens", "4400"),
    ("max-update", "200000"),
)
# As `nas translate` decodes: fairseq does not count the end mark, which is one of our ten.
DECODING = (
    ("beam", "4"),
    ("lenpen", "0.6"),
    ("max-len-a", "1.2"),
    ("max-len-b", "9"),
)
# Without it fairseq leaves out the last batch of a split unless its rows are a multiple of 8.
WHOLE_SPLITS = ("required-batch-size-multiple", "1")


@dataclass(frozen=True, slots=True)
class FairseqJob:
    """A network that is ready to be trained with fairseq.

    Attributes:
        entry: the network.
        path: its folder.
    """

    entry: FrontEntry
    path: Path


def prepare_job(folder: RunFolder, how: str) -> FairseqJob:
    """Write the folder of a network: network, plug-in, data and commands.

    What an earlier training left there stays.

    Args:
        folder: a run for translation with a front.
        how: ``knee``, ``best`` or an id, see `nas.search.front.pick`.

    Raises:
        UsageError: for a run of another task, or without a front or such a network.
        DataError: when the data are missing, damaged or not those of the run.
    """
    from nas.stages.base import Run
    from supernet.blueprint import ARCHITECTURE_FILE, Blueprint
    from supernet.tasks.translation import TranslationTask

    check_task(folder)
    entry = pick(read_front(folder), how)
    run = Run(folder)
    task = run.task
    assert isinstance(task, TranslationTask)
    path = folder.path / fairseq_folder(entry.id)
    with folder.locked():
        path.mkdir(parents=True, exist_ok=True)
        blueprint = Blueprint(run.space.task, run.space.model, entry.architecture)
        write_json(path / ARCHITECTURE_FILE, blueprint.to_json())
        with building_folder(path / USER_DIR.name) as building:
            write_plugin(building)
        data = _data(run, task, path)
        _write_script(path / "train.sh", _train_script(folder, entry, data))
        _write_script(path / "generate.sh", _generate_script(data, task))
        write_atomically(path / "README.md", _readme(folder, entry))
    return FairseqJob(entry, path)


def check_task(folder: RunFolder) -> None:
    """See that fairseq has a place for networks of a run.

    Raises:
        UsageError: when they do not translate.
    """
    task = folder.spec.space.task
    if task != "translation":
        raise UsageError(
            f"{folder.path} is a run for {task.replace('_', ' ')}; fairseq trains networks for "
            "translation only"
        )


@dataclass(frozen=True, slots=True)
class _Data:
    """What fairseq's commands are told about the data: where they are, and the languages."""

    path: str
    languages: tuple[str, str]


def _data(run: Run, task: TranslationTask, path: Path) -> _Data:
    """The run's own data where they are fairseq's, else a copy in that form."""
    given = run.spec.data
    if given is not None and is_data_bin(Path(given)):
        found = DataBin.find(Path(given), run.space)
        return _Data(given, (found.source, found.target))
    source, target = _languages(run)
    folder = path / DATA_FOLDER
    content = f"{task.digest} {source}-{target}\n"
    with suppress(OSError):
        if (folder / DIGEST_FILE).read_text(encoding="utf-8") == content:
            return _Data(DATA_FOLDER, (source, target))
    with building_folder(folder) as building:
        splits = {"train": task.train, "valid": task.valid}
        tokenizers = (task.source_tokenizer, task.target_tokenizer)
        write_data_bin(building, splits, tokenizers, (source, target))
        write_atomically(building / DIGEST_FILE, content)
    return _Data(DATA_FOLDER, (source, target))


def _languages(run: Run) -> tuple[str, str]:
    given: Any = run.space.data.get("languages")
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] != given[1]:
        return str(given[0]), str(given[1])
    return "source", "target"


def _train_script(folder: RunFolder, entry: FrontEntry, data: _Data) -> str:
    from nas.fairseq.checkpoint import ARCH
    from supernet.blueprint import ARCHITECTURE_FILE

    spec = folder.spec
    options = [
        *_common(data),
        ("arch", ARCH),
        ("nas-architecture", ARCHITECTURE_FILE),
        *SETTINGS,
        ("dropout", str(spec.budget.retrain.dropout)),
        ("clip-norm", str(spec.budget.retrain.clip_norm)),
        ("seed", str(spec.seed)),
        WHOLE_SPLITS,
        ("save-dir", CHECKPOINTS),
        ("keep-last-epochs", "10"),
    ]
    return _script(
        f"Trains the network {entry.id} from scratch, with the settings of the mFormer paper "
        "(section 6.1).\n# Further options go behind: ./train.sh --max-update 1000",
        f"fairseq-train {shlex.quote(data.path)}",
        options,
    )


def _generate_script(data: _Data, task: TranslationTask) -> str:
    from supernet.data.tokenizer import SentencePieceTokenizer

    pieces = isinstance(task.target_tokenizer, SentencePieceTokenizer)
    how = "sentencepiece" if pieces else task.post_process
    options = [
        *_common(data),
        ("path", BEST),
        ("gen-subset", "valid"),
        *DECODING,
        WHOLE_SPLITS,
        ("results-path", "results"),
    ]
    if how != "none":
        options.append(("post-process", how))
    return _script(
        "Translates the validation split as nas translate does, into results.\n"
        "# Further options go behind: ./generate.sh --sacrebleu",
        f"fairseq-generate {shlex.quote(data.path)}",
        options,
    )


def _common(data: _Data) -> list[tuple[str, str]]:
    source, target = data.languages
    return [
        ("user-dir", USER_DIR.name),
        ("task", "translation"),
        ("source-lang", source),
        ("target-lang", target),
    ]


def _script(comment: str, command: str, options: Sequence[tuple[str, str]]) -> str:
    lines = [f"    --{name} {shlex.quote(value)}" for name, value in options]
    return (
        f"#!/usr/bin/env bash\n# {comment}\nset -euo pipefail\n"
        'cd "$(dirname "${BASH_SOURCE[0]}")"\n'
        + " \\\n".join([f"exec {command}", *lines, '    "$@"\n'])
    )


def _write_script(path: Path, text: str) -> None:
    write_atomically(path, text)
    path.chmod(0o755)


def _readme(folder: RunFolder, entry: FrontEntry) -> str:
    run = shlex.quote(str(folder.path))
    best = shlex.quote(str(folder.path / fairseq_folder(entry.id) / BEST))
    return (
        f"# The network {entry.id} for fairseq\n\n"
        "This folder can be carried to any machine with fairseq (on Python 3.11 and newer "
        "`pip install fairseq-fixed`); nothing else of ours is needed there. Data that "
        "fairseq-preprocess wrote are not copied: `train.sh` names where they were.\n\n"
        "    ./train.sh          # from scratch, or on from the last checkpoint\n"
        "    ./generate.sh       # translate the validation split\n\n"
        "Then, where the run is, take the weights into it, score them on the test split, and go "
        "on as after `nas retrain`:\n\n"
        f"    nas fairseq import {run} {best}\n"
    )
