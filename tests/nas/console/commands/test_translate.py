"""`nas translate` and `nas evaluate`: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nas.console.app import app
from nas.console.commands import translate as command
from nas.console.commands.translate import BATCH_TOKENS, BEAM, LENPEN
from nas.results.networks import choose_trained, open_data, open_network
from nas.run.folder import RunFolder
from search_spaces.errors import UsageError
from supernet.beam_search import BeamSettings
from supernet.sequence_models import TranslationModel
from supernet.tasks.evaluation import score
from supernet.tasks.translating import DECODING_TOKENS, StepwiseTranslator, translate_lines
from supernet.tasks.translation import TranslationTask
from tests.support import prepare_cases, trained_cases
from tests.support.pipeline_cases import tree
from tests.support.trained_cases import SPACES, train, trained

small_corpus = trained_cases.small_corpus

LINES = ["the fox sees a bird , a b .", "", "a child loves the dog , c .", "   ", "birds", "¿?"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    folder = tmp_path_factory.mktemp("runs")
    return {task: trained(folder / task, text) for task, text in SPACES.items()}


@pytest.fixture
def run(made: dict[str, RunFolder]) -> RunFolder:
    return made["translation"]


def nas(*arguments: str | Path, given: str | bytes = b"") -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments], input=given)


def expected(run: RunFolder, lines: list[str], beam: BeamSettings | None = None) -> list[str]:
    """Translations without the command."""
    network = open_network(run, choose_trained(run, None), "cpu")
    task, model = open_data(run, None).task, network.model
    assert isinstance(task, TranslationTask) and isinstance(model, TranslationModel)
    return translate_lines(
        StepwiseTranslator(model, network.architecture),
        lines,
        task.source_tokenizer,
        task.target_tokenizer,
        beam or BeamSettings(),
        max_tokens=DECODING_TOKENS,
        device="cpu",
    )


# -- translating ----------------------------------------------------------------------------------


def test_lines_come_out_in_order(run: RunFolder) -> None:
    before = tree(run.path)
    done = nas("translate", run.path, given="\n".join(LINES) + "\n")
    assert (done.exit_code, done.stderr) == (0, "")
    texts = done.stdout.split("\n")
    assert texts == [*expected(run, LINES), ""]
    assert [bool(text) for text in texts[:-1]] == [True, False, True, False, True, True]
    assert tree(run.path) == before


def test_options_of_the_search_count(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, seen = [LINES[0], LINES[2]], list[Any]()

    def translate_text(*arguments: Any) -> list[str]:
        seen.append(arguments[-2:])
        return plainly(*arguments)

    plainly = command.networks.translate_text
    monkeypatch.setattr(command.networks, "translate_text", translate_text)
    options = ["--beam", "2", "--lenpen", "3", "--batch-tokens", "400"]
    changed = nas("translate", run.path, *options, given="\n".join(lines)).stdout
    beam = BeamSettings(beam_size=2, length_penalty=3.0)
    assert seen == [(beam, 400)]
    assert changed.splitlines() == expected(run, lines, beam)


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"birds", ["birds"]),
        (b"birds\n\n", ["birds", ""]),
        (b"\r\nbirds\r\n", ["", "birds"]),
        (b"\xef\xbb\xbfbirds\n\n", ["birds", ""]),
        # Other readers would break these: a form feed, a line separator, a carriage return.
        ("the\x0cdog\u2028sees\x85a\rbird\n".encode(), ["the dog sees a bird"]),
    ],
)
def test_only_line_feeds_end_lines(run: RunFolder, given: bytes, lines: list[str]) -> None:
    done = nas("translate", run.path, "--beam", "1", given=given)
    texts = expected(run, lines, BeamSettings(beam_size=1))
    assert done.exit_code == 0 and done.stdout == "".join(f"{text}\n" for text in texts)


def test_what_is_not_utf8_is_named(run: RunFolder) -> None:
    done = nas("translate", run.path, given=b"birds\nthe \xff dog\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "line 2: not UTF-8 (byte 0xff at column 5)" in done.stderr


def test_a_line_that_is_too_long_is_named(run: RunFolder) -> None:
    done = nas("translate", run.path, given="birds\n" + "birds " * 99 + "\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "line 2 has 100 tokens" in done.stderr and "at most 64" in done.stderr


def test_closed_standard_input(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="is closed; text is read there, line by line"):
        list(command.read_lines())


def test_nobody_reads_the_output(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_lines(lines: Iterable[str]) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(command, "write_lines", write_lines)
    done = nas("translate", run.path, "--beam", "1", given="birds\n")
    assert (done.exit_code, done.output) == (1, "")


def test_output_is_utf8_whatever_the_terminal_says(capfdbinary: Any) -> None:
    command.write_lines(["größe", "", "鳥"])
    assert capfdbinary.readouterr().out == "größe\n\n鳥\n".encode()


def test_other_data_of_that_size_are_warned_of(tmp_path: Path) -> None:
    prepare_cases.write_pairs(tmp_path)
    for name, most in (("one", 64), ("other", 32)):
        prepare_cases.run(tmp_path, out=tmp_path / name, max_length=most)
    folder = trained(tmp_path / "run", dataset="one", data=str(tmp_path / "one"))
    assert nas("translate", folder.path, given="birds\n").stderr == ""
    os.rename(tmp_path / "one", tmp_path / "gone")
    assert "--data DIR" in nas("translate", folder.path, given="birds\n").stderr
    done = nas("translate", folder.path, "--data", tmp_path / "other", given="birds\n")
    assert done.exit_code == 0 and "warning" in done.stderr and done.stdout.count("\n") == 1
    done = nas("evaluate", folder.path, "--data", tmp_path / "other")
    assert done.exit_code == 2 and "does not hold the data" in done.stderr
    assert nas("evaluate", folder.path, "--data", tmp_path / "gone").exit_code == 0


# -- evaluating -----------------------------------------------------------------------------------

WORDS = {
    "translation": ["BLEU", "signature", "loss", "perplexity per token"],
    "classification": ["accuracy", "loss"],
    "language_modelling": [
        "perplexity per token",
        "perplexity per word",
        "bits per character",
        "accuracy",
        "loss",
    ],
}


@pytest.mark.parametrize("task", SPACES)
def test_scores_by_task(made: dict[str, RunFolder], task: str) -> None:
    folder = made[task]
    done = nas("evaluate", folder.path)
    assert (done.exit_code, done.stderr) == (0, "")
    rows = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    rows = {name: text.strip() for name, text in rows.items()}
    assert list(rows) == ["run", "id", "task", "dataset", "split", *WORDS[task]]
    assert (rows["task"], rows["split"]) == (task, "test")
    printed = json.loads(nas("evaluate", folder.path, "--json").stdout)
    assert rows["loss"] == f"{printed['loss']:.4f}" and rows["id"] == printed["id"]


def test_json_holds_every_score(run: RunFolder) -> None:
    options = ["--split", "valid", "--beam", "1", "--lenpen", "0", "--json"]
    printed = json.loads(nas("evaluate", run.path, *options).stdout)
    network, data = open_network(run, printed["id"], "cpu"), open_data(run, None)
    beam = BeamSettings(beam_size=1, length_penalty=0.0)
    found = score(data.task, network.model, network.architecture, data.task.valid, beam=beam)
    assert printed.items() >= found.values.items() and printed["predictions"] == found.count
    assert printed["bleu_signature"] == found.bleu_signature
    assert (printed["split"], printed["beam"], printed["length_penalty"]) == ("valid", 1, 0)


def test_a_loss_that_is_no_number(
    made: dict[str, RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    from supernet.tasks.base import Evaluation

    broken = Evaluation(float("nan"), 0.0, 5)
    monkeypatch.setattr("supernet.tasks.evaluation.evaluate", lambda *_, **__: broken)
    done = nas("evaluate", made["classification"].path, "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "not a finite number; train it anew with a lower learning rate" in done.stderr


# -- wrong use ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["translate", "evaluate"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--arch", "zzzz"], "is the id of no network"),
        (["--data", "nowhere"], "--data nowhere does not exist"),
        (["--lenpen", "inf"], "(--lenpen) is inf; give a number from 0 to 10"),
        (["--lenpen", "1000"], "(--lenpen) is 1000; give a number from 0 to 10"),
        (["--lenpen", "-1"], "lenpen"),
        (["--beam", "0"], "beam"),
        (["--beam", "5000"], "cannot hold line"),
        (["--batch-tokens", "3"], "cannot hold line"),
    ],
)
def test_what_is_refused(run: RunFolder, name: str, options: list[str], words: str) -> None:
    done = nas(name, run.path, *options, given="birds\n")
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr and "Traceback" not in done.output


@pytest.mark.parametrize("task", ["classification", "language_modelling"])
def test_only_translation_networks_translate(made: dict[str, RunFolder], task: str) -> None:
    done = nas("translate", made[task].path, given="birds\n")
    assert done.exit_code == 2 and "needs a run for translation" in done.stderr
    done = nas("evaluate", made[task].path, "--beam", "2")
    assert done.exit_code == 2 and "are for translation" in done.stderr


def test_of_two_networks_the_winner_is_taken_or_one_is_named(tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", SPACES["classification"])
    first, second = choose_trained(folder, None), train(folder, 1)
    assert json.loads(nas("evaluate", folder.path, "--json").stdout)["id"] == first
    printed = json.loads(nas("evaluate", folder.path, "--arch", second[:5], "--json").stdout)
    assert printed["id"] == second
    (folder.path / "pareto.json").unlink()
    done = nas("evaluate", folder.path)
    assert done.exit_code == 2 and first in done.stderr and second in done.stderr


def test_a_run_of_a_machine_with_a_graphics_card(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one as well")
    folder = trained(tmp_path / "run", SPACES["classification"], device="cuda")
    assert "use --device cpu" in nas("evaluate", folder.path).stderr
    assert nas("evaluate", folder.path, "--device", "cpu").exit_code == 0


def test_the_usual_settings_are_those_of_the_library() -> None:
    usual = BeamSettings()
    assert (BEAM.show_default, LENPEN.show_default) == (
        str(usual.beam_size),
        str(usual.length_penalty),
    )
    assert BATCH_TOKENS.show_default.startswith(f"{DECODING_TOKENS},")
