"""The lines of model cards, run as they stand in a clean process that knows the folder alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.results.networks import choose_trained
from nas.run.folder import RunFolder
from nas.run.layout import weights_file
from supernet.data.tokenizer import EOS
from supernet.training.checkpoint import load, save
from tests.nas.console.commands.test_predict import folder, runs
from tests.nas.stages.test_prepared_search import TEXT_SPACE, prepare_texts
from tests.support.export_cases import export_to
from tests.support.prepare_cases import pictures, png, write_pairs
from tests.support.prepare_cases import run as prepare
from tests.support.tokenizer_cases import prepared_stream, word_pieces
from tests.support.trained_cases import LANGUAGE, SPACES, begun, train, trained, with_front

folder, runs = folder, runs  # the fixtures

NAMES = (
    *("pets", "enlarged", "mails", "translation", "language_modelling", "pairs", "stream"),
    *("ending", "marked", "letters"),
)
# Runs the lines of every card, with nothing of ours to import.
CLEAN = """
import os, sys
for name in ("nas", "search_spaces", "supernet", "latency", "service", "experiments"):
    sys.modules[name] = None
for folder in sys.argv[1:]:
    os.chdir(folder)
    sys.path.insert(0, folder)
    lines = open("lines.py", encoding="utf-8").read()
    print("<<<")
    exec(compile(lines, "lines.py", "exec"), {"__name__": "__main__"})
    print(">>>", flush=True)
    sys.path.remove(folder)
    for name in ("modeling", "decode"):
        sys.modules.pop(name, None)
"""


def answers_of(folders: list[Path], home: Path) -> list[str]:
    """What the lines of the cards print, one text for each folder."""
    for one in folders:
        card = (one / "README.md").read_text("utf-8")
        (block,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
        (one / "lines.py").write_text(block, "utf-8")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HUB_OFFLINE": "1"}
    env |= {"OMP_NUM_THREADS": "1", "HF_HOME": str(home / "hub")}
    command = [sys.executable, "-I", "-c", CLEAN, *map(str, folders)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return re.findall(r"<<<\n(.*?)>>>", done.stdout, flags=re.DOTALL)


def predicted(target: Path, given: Path | None, tokens: int) -> str:
    words = ["predict", str(target), "--tokens", str(tokens), "--json"]
    done = CliRunner().invoke(app, words + ([str(given)] if given else []), input="a text\n")
    assert done.exit_code == 0, done.output
    return str(json.loads(done.stdout)["answer"])


def ending(path: Path) -> RunFolder:
    """A run with a network that writes words and end marks."""
    run = begun(path, LANGUAGE)
    with_front(run)
    torch.manual_seed(1)
    name = train(run, 1)
    file = run.path / weights_file(name)
    state = load(file)
    state["model"]["tables.0.weight"][EOS] *= 2
    save(file, state)
    run.finish(f"retrain-{name}", "digest", [weights_file(name)], 1.0)
    return run


@pytest.fixture(scope="module")
def more_runs(runs: dict[str, RunFolder], folder: Path) -> dict[str, RunFolder]:
    """Those of the fixture, and some with other vocabularies.

    Two have vocabularies of sentencepiece, and labelled texts byte pairs; one writes end marks, and
    the tokenizer of another puts them behind each text.
    """
    raw = folder / "raw"
    raw.mkdir()
    write_pairs(raw)
    prepare(raw, joint=False, vocab_size=60, out=raw / "pairs")
    prepare(raw, "language_modelling", vocab_size=60, out=raw / "stream")
    texts = {"pairs": "translation", "stream": "language_modelling"}
    prepared_stream(folder / "marked", word_pieces(), pad_token="[PAD]")
    prepare_texts(raw, tokenizer="bpe", out=raw / "letters")
    named = {"dataset": "letters", "data": str(raw / "letters")}
    marked = {"dataset": "data", "data": str(folder / "marked/data")}
    ended = {
        "ending": ending(folder / "run-ending"),
        "marked": trained(folder / "run-marked", LANGUAGE, **marked),
        "letters": trained(folder / "run-letters", TEXT_SPACE.replace("257", "269"), **named),
    }
    return (
        runs
        | ended
        | {
            name: trained(
                folder / f"run-{name}",
                SPACES[task].replace("share_embeddings = true", "target_vocab_size = 160"),
                dataset=name,
                data=str(raw / name),
            )
            for name, task in texts.items()
        }
    )


@pytest.mark.parametrize(
    "form",
    ["torch", *(pytest.param(f, marks=pytest.mark.slow) for f in ("huggingface", "onnx"))],
)
def test_lines_of_cards_answer_as_predict_does(
    more_runs: dict[str, RunFolder], tmp_path: Path, form: str
) -> None:
    folders = []
    for name in NAMES:
        run = more_runs[name]
        out = tmp_path / name
        export_to(run, form, out, arch=choose_trained(run, None))
        (out / "picture.png").write_bytes(png(pictures(1, side=20)[0][0][:, :13]))
        folders.append(out)
    found = answers_of(folders, tmp_path)
    for name, out, answer in zip(NAMES, folders, found, strict=True):
        longest = more_runs[name].spec.space.model.max_length
        tokens = min(40, longest // 2)
        given = out / "picture.png" if name in ("pets", "enlarged") else None
        of_run = predicted(more_runs[name].path, given, tokens)
        assert answer.split() == of_run.split(), (name, answer)
        assert predicted(out, given, tokens) == of_run, name
        assert name != "ending" or 0 < len(of_run.split()) < tokens
