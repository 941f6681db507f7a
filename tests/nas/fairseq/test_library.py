"""fairseq itself: data, training, decoding and weights in both directions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nas.fairseq.backend import find_program, import_checkpoints, run_job
from nas.fairseq.binarised import write_data_bin
from nas.fairseq.checkpoint import read_trained, write_checkpoint
from nas.fairseq.folder import FairseqJob, prepare_job
from nas.fairseq.plugin import USER_DIR
from nas.results.export import ExportRequest, export_network
from nas.results.networks import open_data, open_network, translate_text
from nas.run.folder import RunFolder
from search_spaces.errors import NasError
from search_spaces.notation import from_text
from search_spaces.settings import ModelSettings, TokenInput
from supernet.beam_search import BeamSettings
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.data.tokenizer import BOS, EOS, PAD, join_words
from supernet.tasks.opening import open_task
from supernet.tasks.translation import TranslationTask
from tests.support.data_bin_cases import random_lines
from tests.support.fairseq_cases import ROWS, TARGETS
from tests.support.trained_cases import TRANSLATION, begun, with_front

pytestmark = [pytest.mark.fairseq, pytest.mark.slow]

SAID = [f"s{number}@@" if number % 5 == 0 else f"s{number}" for number in range(20)]
COUNTS = {"train": 400, "valid": 30, "test": 50}
TRAINING = (
    "--max-update 150 --lr 0.005 --warmup-updates 20 --max-tokens 600 --dropout 0 --cpu "
    "--no-progress-bar --log-interval 50"
).split()

# Linear attention in the decoder, and enough width to learn a word for each word.
SPACE = TRANSLATION
for _old, _new in (
    ("vocab_size = 160", "vocab_size = 48"),
    ("[8, 12]", "[32]"),
    ("[8, 16]", "[64]"),
    ("head_dim = 4", "head_dim = 16"),
    ('self_attention = ["softmax", "linear"]', 'self_attention = ["linear"]'),
    ('cross_attention = ["softmax", "linear"]', 'cross_attention = ["linear", "softmax"]'),
):
    SPACE = SPACE.replace(_old, _new)


@dataclass(frozen=True)
class World:
    """Text, the same binarised by fairseq, and a run whose network fairseq has trained on it."""

    folder: Path
    lines: dict[str, tuple[list[str], list[str]]]
    run: RunFolder
    job: FairseqJob

    @property
    def data(self) -> Path:
        return self.folder / "data-bin"

    def task(self) -> TranslationTask:
        task = open_task(self.run.spec.space, "data-bin", str(self.data), 0)
        assert isinstance(task, TranslationTask)
        return task


def call(name: str, *arguments: object) -> str:
    command = [str(find_program(name)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def meant(line: str) -> str:
    return " ".join(word.replace("s", "t") for word in line.split())


def write_text(folder: Path) -> dict[str, tuple[list[str], list[str]]]:
    lines = {}
    for seed, (split, count) in enumerate(COUNTS.items()):
        said = random_lines(seed, count, SAID)
        lines[split] = (said, [meant(line) for line in said])
        for language, part in zip(("en", "de"), lines[split], strict=True):
            (folder / f"{split}.{language}").write_text("".join(f"{one}\n" for one in part))
    return lines


def preprocess(folder: Path, out: str = "data-bin") -> None:
    prefixes = [word for split in COUNTS for word in (f"--{split}pref", folder / split)]
    pair = ("-s", "en", "-t", "de", "--joined-dictionary", "--workers", 1)
    call("fairseq-preprocess", *pair, *prefixes, "--destdir", folder / out)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("world")
    lines = write_text(folder)
    preprocess(folder)
    run = begun(folder / "run", SPACE, data=str(folder / "data-bin"), dataset="data-bin")
    with_front(run)
    run.finish("declare", "digest", ["data.json"], 1.0)
    job = prepare_job(run, "best")
    list(import_checkpoints(run, [run_job(job, TRAINING)]))
    return World(folder, lines, run, job)


def ours(world: World, lines: list[str], beam: int) -> list[str]:
    """As `nas translate` does it."""
    network = open_network(world.run, world.job.entry.id, "cpu")
    settings = BeamSettings(beam_size=beam)
    return translate_text(network, open_data(world.run, None), lines, settings, 16_384)


def hypotheses(text: str) -> list[str]:
    """The lines that fairseq wrote, in the order of the input."""
    found = re.findall(r"^H-(\d+)\t[^\t]*\t(.*)$", text, re.MULTILINE)
    return [line for _, line in sorted(found, key=lambda pair: int(pair[0]))]


def generate(world: World, checkpoint: Path, user_dir: Path, beam: int, out: Path) -> list[str]:
    decoding = "--lenpen 0.6 --max-len-a 1.2 --max-len-b 9 --batch-size 1 --cpu".split()
    where = ("--user-dir", user_dir, "--path", checkpoint, "--results-path", out)
    whole = ("--required-batch-size-multiple", 1, "--gen-subset", "test", "--beam", beam)
    call("fairseq-generate", world.data, *where, *decoding, *whole)
    return hypotheses((out / "generate-test.txt").read_text("utf-8"))


# -- data -----------------------------------------------------------------------------------------


def test_what_fairseq_wrote_is_read(world: World) -> None:
    task = world.task()
    rows = task.train.source
    found = task.source_tokenizer.decode([rows[n].tolist() for n in range(len(rows))])
    assert found == world.lines["train"][0] and task.post_process == "subword_nmt"
    for split, held_out in (("valid", task.valid), ("test", task.open_test())):
        assert list(held_out.source_lines) == world.lines[split][0]
        joined = [line.replace("@@ ", "").removesuffix("@@") for line in world.lines[split][1]]
        assert list(held_out.target_lines) == joined


def test_what_is_written_is_byte_by_byte_what_fairseq_wrote(world: World, tmp_path: Path) -> None:
    task = world.task()
    splits = {"train": task.train, "valid": task.valid, "test": task.open_test()}
    write_data_bin(tmp_path, splits, (task.source_tokenizer, task.target_tokenizer), ("en", "de"))
    names = {path.name for path in world.data.iterdir()} - {"preprocess.log"}
    assert {path.name for path in tmp_path.iterdir()} == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (world.data / name).read_bytes(), name


# -- decoding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 4])
def test_generate_equals_translate_token_for_token(world: World, tmp_path: Path, beam: int) -> None:
    checkpoint = world.job.path / "checkpoints" / "checkpoint_best.pt"
    found = generate(world, checkpoint, USER_DIR, beam, tmp_path)
    assert found == ours(world, world.lines["test"][0], beam)
    assert len(found) == COUNTS["test"] and len(set(found)) > COUNTS["test"] // 2


def test_the_script_decodes_as_translate_does(world: World) -> None:
    command = ["bash", str(world.job.path / "generate.sh"), "--batch-size", "1", "--cpu"]
    paths = f"{find_program('fairseq-generate').parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": paths})
    text = (world.job.path / "results" / "generate-valid.txt").read_text("utf-8")
    lines = ours(world, world.lines["valid"][0], 4)
    assert hypotheses(text) == [join_words(line, "subword_nmt") for line in lines]


def test_an_export_decodes_to_the_same_on_its_own(world: World, tmp_path: Path) -> None:
    out = tmp_path / "out"
    export_network(world.run, ExportRequest("fairseq", out=out))
    expected = ours(world, world.lines["test"][0], 4)
    plugin = out / USER_DIR.name
    assert generate(world, out / "checkpoint.pt", plugin, 4, tmp_path / "results") == expected
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in world.lines["test"][0]))
    decoding = "--beam 4 --lenpen 0.6 --max-len-a 1.2 --max-len-b 9 --cpu".split()
    where = ("--user-dir", plugin, "--path", out / "checkpoint.pt", "--input", tmp_path / "lines")
    told = call("fairseq-interactive", out, "-s", "source", "-t", "target", *where, *decoding)
    assert hypotheses(told) == expected


# -- weights --------------------------------------------------------------------------------------


def fairseqs(user_dir: Path, data: Path, *checkpoints: Path) -> list[dict[str, np.ndarray]]:
    script = Path(__file__).parents[2] / "support" / "fairseq_twin.py"
    command = [sys.executable, str(script), *map(str, (user_dir, data, *checkpoints))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [dict(np.load(f"{checkpoint}.npz")) for checkpoint in checkpoints]


def expected(checkpoint: Path) -> np.ndarray:
    """The same logits by our model, from padding on the right and with our marks."""
    width, longest = max(map(len, ROWS)), max(map(len, TARGETS))
    source = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in ROWS])
    targets = [[BOS, *row[:-1], *[PAD] * (longest - len(row))] for row in TARGETS]
    with torch.inference_mode():
        logits = read_trained(checkpoint).network(source, torch.tensor(targets))
    return logits[..., [1, 0, *range(EOS, logits.shape[-1])]].numpy()


def real(logits: np.ndarray) -> np.ndarray:
    """Those at tokens."""
    return np.concatenate([row[: len(one)] for row, one in zip(logits, TARGETS, strict=True)])


def check_equal(found: dict[str, np.ndarray], checkpoint: Path) -> None:
    own = real(expected(checkpoint))
    for way in ("whole", "steps"):
        theirs = real(found[way])
        assert np.abs(theirs - own[:, : theirs.shape[1]]).max() < 1e-5, way


@pytest.mark.parametrize("source", ["fairseq", "export"])
def test_weights_compute_the_same_on_both_sides(world: World, tmp_path: Path, source: str) -> None:
    checkpoint, plugin = tmp_path / "checkpoint.pt", USER_DIR
    if source == "export":
        export_network(world.run, ExportRequest("fairseq", out=tmp_path / "out"))
        checkpoint, plugin = tmp_path / "out/checkpoint.pt", tmp_path / "out" / USER_DIR.name
    else:
        shutil.copy(world.job.path / "checkpoints" / "checkpoint_best.pt", checkpoint)
    (found,) = fairseqs(plugin, world.data, checkpoint)
    check_equal(found, checkpoint)
    own = str(plugin / "lib") if source == "export" else str(USER_DIR.parents[3] / "supernet")
    assert str(found["code"]).startswith(own)


LINE = "E16: s2/16 l1/16 o2/16 | D24: {}2+s2@2/32 o1+l1@3/16 {}1+o2@1/16"
KINDS: dict[str, dict[str, Any]] = {
    "relative keys, performer": {"relative_positions": 3, "norm": "post"},
    "norm-linear, learned positions": {"linear_kernel": "norm", "positions": "learned"},
    "bigbird": {"omni_kernel": "bigbird", "bigbird_block": 1, "activation": "gelu"},
    "full, widths fixed": {"omni_kernel": "full", "head_dim": None, "qkv_dim": 8},
    "two tables": {"input": TokenInput(60, 52)},
}


def test_every_kind_of_attention_computes_the_same(world: World, tmp_path: Path) -> None:
    tokens = TokenInput(48, share_embeddings=True)
    usual = ModelSettings(tokens, max_length=32, head_dim=8, positions="sinusoidal", omni_span=3)
    files = []
    for number, changes in enumerate(KINDS.values()):
        for kind in ("s", "l"):
            blueprint = Blueprint(
                "translation", replace(usual, **changes), from_text(LINE.format(kind, kind))
            )
            torch.manual_seed(number)
            network = build_network(blueprint.settings, "translation", blueprint.architecture)
            files.append(tmp_path / f"{number}{kind}.pt")
            write_checkpoint(files[-1], blueprint, network.network.state_dict(), ("en", "de"))
    for file, found in zip(files, fairseqs(USER_DIR, world.data, *files), strict=True):
        check_equal(found, file)


# -- failures -------------------------------------------------------------------------------------


def test_training_goes_on_where_it_stopped(world: World) -> None:
    run_job(world.job, [*TRAINING, "--max-update", "152", "--save-dir", "checkpoints"])
    log = (world.job.path / "train.log").read_text("utf-8")
    assert re.search(r"Loaded checkpoint checkpoints/checkpoint_last.pt .* 150 updates", log)


def test_a_failing_training_is_told(world: World) -> None:
    with pytest.raises(NasError, match=r"(?s)ended with 2 .*unrecognized arguments: --nonsense"):
        run_job(world.job, ["--nonsense"])


def test_dictionaries_of_other_data_are_told(world: World, tmp_path: Path) -> None:
    for split in COUNTS:
        for language in ("en", "de"):
            text = "".join(f"word{n} word{n + 1}\n" for n in range(60))
            (tmp_path / f"{split}.{language}").write_text(text)
    preprocess(tmp_path)
    other = World(tmp_path, {}, world.run, world.job)
    checkpoint = world.job.path / "checkpoints" / "checkpoint_best.pt"
    with pytest.raises(AssertionError, match="dictionary has .* symbols, but the vocabulary"):
        generate(other, checkpoint, USER_DIR, 1, tmp_path / "out")
