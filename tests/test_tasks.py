"""The tasks: what is predicted from which batch, how it is judged, and where data come from."""

from __future__ import annotations

import math
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from typer.testing import CliRunner

from nas.cli.app import app
from search_spaces.errors import DataError, UnknownNameError, UsageError
from search_spaces.loading import load_space, parse_space
from search_spaces.settings import TokenInput
from supernet.beam_search import BeamSettings
from supernet.data import sources
from supernet.data.grammar import generate
from supernet.data.token_files import TokenRows
from supernet.data.tokenizer import BOS, EOS
from supernet.loss import IGNORED
from supernet.tasks import language_modelling, translation
from supernet.tasks.base import Task
from supernet.tasks.bleu import corpus_bleu
from supernet.tasks.evaluation import evaluate
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.opening import open_task
from supernet.tasks.scores import MOST_NATS, score
from supernet.tasks.translating import StepwiseTranslator, translate_lines
from supernet.training_settings import TrainingSettings
from tests.task_cases import (
    KINDS,
    SEGMENT,
    SENTENCES,
    SPACES,
    TEST,
    TOKENIZER,
    TRAIN,
    VALID,
    networks_of,
    supernet_of,
    task_of,
)
from tests.trained_cases import LANGUAGE, TRANSLATION

SETTINGS = TrainingSettings(batch_size=16, max_tokens=128, segment_length=SEGMENT)
TEXTS = ("translation", "language_modelling")
each_kind = pytest.mark.parametrize("kind", KINDS)


def first_batch(task: Task[Any, Any], settings: TrainingSettings = SETTINGS) -> Any:
    return next(iter(task.batches(settings, seed=0, epoch=0, device="cpu")))


def valid_logits(kind: str) -> list[tuple[Tensor, Tensor]]:
    """Logits and labels of the validation split, one example, pair or segment after the other."""
    task, space = task_of(kind), SPACES[kind]
    model: Any = supernet_of(space).eval()
    (network,) = networks_of(space, 1)
    valid = task.valid
    if kind == "classification":
        return [
            (model(x[None], network), y[None])
            for x, y in zip(valid.inputs, valid.labels, strict=True)
        ]
    if kind == "translation":
        pairs = zip(map(list, valid.source), map(list, valid.target), strict=True)
        return [
            (
                model(torch.tensor([[*x, EOS]]), torch.tensor([[BOS, *y]]), network)[0],
                torch.tensor([*y, EOS]),
            )
            for x, y in pairs
        ]
    stream = torch.from_numpy(valid.rows.tokens).long()
    inputs = torch.cat((torch.tensor([BOS]), stream[:-1]))
    parts = zip(inputs.split(SEGMENT), stream.split(SEGMENT), strict=True)
    return [(model(part[None], network)[0], labels) for part, labels in parts]


# -- what is predicted ------------------------------------------------------------------------


@each_kind
def test_every_prediction_has_its_label(kind: str) -> None:
    task, space = task_of(kind), SPACES[kind]
    batch = first_batch(task)
    logits, labels = task.predict(supernet_of(space), batch, networks_of(space, 1)[0])
    assert logits.shape == (len(labels), task.num_outcomes) and labels.dtype == torch.int64
    real = labels != IGNORED
    assert int(labels[real].min()) >= 0 and int(labels[real].max()) < task.num_outcomes
    assert int(real.sum()) == getattr(batch, "num_tokens", len(batch))


def test_padding_of_a_batch_is_not_predicted() -> None:
    task = task_of("translation")
    batch = first_batch(task)
    space = SPACES["translation"]
    labels = task.predict(supernet_of(space), batch, networks_of(space, 1)[0]).labels
    found = labels.view(batch.targets.shape)
    assert (found[batch.target_mask] == batch.targets[batch.target_mask]).all()
    assert (found[~batch.target_mask] == IGNORED).all() and (~batch.target_mask).any()


def test_the_end_of_a_text_is_not_predicted_beyond() -> None:
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    *_, last = task.evaluation(
        supernet_of(space), networks_of(space, 1)[0], task.valid, device="cpu"
    )
    ignored = (last.labels == IGNORED).nonzero().flatten()
    length = len(task.valid)
    assert len(ignored) == -length % SEGMENT > 0
    assert ignored.tolist() == list(range(len(last.labels) - len(ignored), len(last.labels)))


def test_lists_are_judged_shortest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, count in {"TRAIN": 2, "VALID": 70}.items():
        monkeypatch.setattr(sources, f"LISTOPS_{name}", count)
    task = open_task(load_space("listops"), "listops", None, 0)
    shapes: list[tuple[int, ...]] = []

    def model(inputs: Tensor, network: object) -> Tensor:
        shapes.append(tuple(inputs.shape))
        return torch.zeros(len(inputs), 10)

    found: Any = list(task.evaluation(model, None, task.valid, "cpu"))  # type: ignore[arg-type]
    sizes, lengths = zip(*shapes, strict=True)
    assert sizes == (32, 32, 6) and list(lengths) == sorted(lengths) and lengths[0] < lengths[-1]
    labels = torch.cat([part.labels for part in found])
    assert labels.sort().values.equal(task.valid.labels.sort().values)


# -- batches ----------------------------------------------------------------------------------


def contents(task: Task[Any, Any], seed: int, epoch: int) -> list[bytes]:
    stream = task.batches(SETTINGS, seed=seed, epoch=epoch, device="cpu")
    return [batch.inputs.numpy().tobytes() for batch in stream]


@each_kind
def test_seed_and_epoch_decide_the_batches(kind: str) -> None:
    task = task_of(kind)
    first = contents(task, 0, 0)
    assert first == contents(task_of(kind), 0, 0)
    assert first != contents(task, 0, 1) and first != contents(task, 1, 0)


@each_kind
def test_the_batches_of_the_first_pass_are_counted(kind: str) -> None:
    task = task_of(kind)
    assert task.num_batches(SETTINGS) == len(contents(task, 0, 0)) > 2


def test_augmentation_is_drawn_anew_in_every_epoch() -> None:
    task = task_of("classification")
    settings = TrainingSettings(batch_size=64, augmentation="shift=2")
    passes = [
        next(iter(task.batches(settings, seed=seed, epoch=epoch, device="cpu"))).inputs
        for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))
    ]
    plain = first_batch(task, TrainingSettings(batch_size=64)).inputs
    assert torch.equal(passes[0], passes[1]) and not torch.equal(passes[0], plain)
    assert len({tuple(sorted(x.sum(dim=(1, 2, 3)).tolist())) for x in passes}) == 3


# -- validation -------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("count", [1, 5, VALID, VALID + 1])
def test_of_the_validation_split_the_first_are_taken(kind: str, count: int) -> None:
    task = task_of(kind)
    fewer = task.first_valid(count)
    assert fewer.describe()["num_valid"] == min(count, VALID)
    assert task.describe()["num_valid"] == VALID
    assert fewer.train is task.train and fewer.digest == task.digest


def test_the_first_pairs_keep_their_text() -> None:
    valid = task_of("translation").first_valid(3).valid
    rows = TokenRows.of(TOKENIZER.encode(valid.source_lines))
    assert [list(row) for row in valid.source] == [list(row) for row in rows]
    assert len(valid.source_lines) == len(valid.target_lines) == len(valid.target) == 3


@pytest.mark.parametrize("count", [1, 5, VALID, VALID + 1])
def test_words_and_characters_are_those_of_the_first_lines(count: int) -> None:
    task = task_of("language_modelling")
    assert isinstance(task, LanguageModellingTask)
    found = task.first_valid(count).valid
    lines = [sentence.text for sentence in SENTENCES[TRAIN : TRAIN + min(count, VALID)]]
    assert found.num_words == sum(len(line.split()) for line in lines)
    assert found.num_characters == sum(len(line) for line in lines)


@each_kind
@pytest.mark.parametrize("tokens", [1, 40, 10_000])
def test_evaluation_is_that_of_one_example_after_the_other(
    kind: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the batches are cut; a row that is longer than they should be is read whole."""
    for module in (translation, language_modelling):
        monkeypatch.setattr(module, "EVALUATION_TOKENS", tokens)
    monkeypatch.setattr("supernet.tasks.classification.EVALUATION_BATCH", tokens)
    task, space = task_of(kind), SPACES[kind]
    found = evaluate(task, supernet_of(space), networks_of(space, 1)[0], task.valid)
    with torch.inference_mode():
        parts = valid_logits(kind)
    logits, labels = (torch.cat(side) for side in zip(*parts, strict=True))
    assert found.count == len(labels)
    wanted = F.cross_entropy(logits.double(), labels).item()
    assert found.loss == pytest.approx(wanted, rel=1e-6)
    assert found.accuracy == pytest.approx((logits.argmax(-1) == labels).double().mean().item())


@each_kind
def test_a_network_that_guesses_has_the_logarithm_of_the_outcomes(kind: str) -> None:
    task, space = task_of(kind), SPACES[kind]
    model = supernet_of(space)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = evaluate(task, model, networks_of(space, 1)[0], task.valid)
    assert found.loss == pytest.approx(math.log(task.num_outcomes), rel=1e-6)


@each_kind
def test_the_test_split_is_opened_when_asked_for_and_not_before(kind: str) -> None:
    opened: list[str] = []
    task = task_of(kind, opened)
    first_batch(task)
    task.check(SETTINGS)
    evaluate(task, supernet_of(SPACES[kind]), networks_of(SPACES[kind], 1)[0], task.valid)
    assert opened == []
    split = task.open_test()
    assert opened == ["test"] and len(getattr(split, "rows", split)) == TEST


# -- descriptions and refusals ----------------------------------------------------------------


def test_descriptions_count_what_is_there() -> None:
    assert task_of("classification").describe() == {
        "num_train": 40,
        "num_valid": 12,
        "num_classes": 10,
    }
    task = task_of("translation")
    size = TOKENIZER.vocab_size
    assert task.describe() == {
        "num_train": 40,
        "num_valid": 12,
        "num_source_tokens": sum(len(row) for row in task.train.source),
        "num_target_tokens": sum(len(row) for row in task.train.target),
        "source_vocab_size": size,
        "target_vocab_size": size,
    }
    task = task_of("language_modelling")
    tokens = sum(len(row) for row in task.train.rows)
    expected = {"num_train": 40, "num_valid": 12, "num_tokens": tokens, "vocab_size": size}
    assert task.describe() == expected


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("translation", {"max_tokens": 8}, "cannot hold the longest pair"),
        ("language_modelling", {"segment_length": 64, "max_tokens": 32}, "do not fit"),
        ("language_modelling", {"segment_length": 65}, "at most 64 tokens.*max_length"),
        ("classification", {"augmentation": "shift=99"}, "shift"),
        ("classification", {"augmentation": "spin=1"}, "spin"),
    ],
)
def test_settings_that_cannot_be_trained_with(
    kind: str, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        task_of(kind).check(TrainingSettings(**settings))


@each_kind
def test_settings_of_other_tasks_do_not_matter(kind: str) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "classification": {"max_tokens": 1, "segment_length": 9999},
        "translation": {"augmentation": "spin=1", "segment_length": 9999},
        "language_modelling": {"augmentation": "spin=1", "segment_length": 64},
    }
    task_of(kind).check(TrainingSettings(**wrong[kind]))


# -- scores -----------------------------------------------------------------------------------

SCORES = {
    "classification": ["accuracy", "loss"],
    "translation": ["accuracy", "bleu", "loss", "perplexity"],
    "language_modelling": [
        "accuracy",
        "bits_per_character",
        "loss",
        "perplexity",
        "word_perplexity",
    ],
}
HEADLINES = {
    "classification": "accuracy",
    "translation": "bleu",
    "language_modelling": "perplexity",
}


@each_kind
def test_every_task_has_its_scores(kind: str) -> None:
    task, space = task_of(kind), SPACES[kind]
    model, (network,) = supernet_of(space), networks_of(space, 1)
    found = score(task, model, network, task.valid)
    plain = evaluate(task, model, network, task.valid)
    assert sorted(found.values) == SCORES[kind] and found.headline == HEADLINES[kind]
    assert found.values["loss"] == plain.loss and found.count == plain.count
    assert (found.bleu_signature is not None) == (kind == "translation")
    if kind in TEXTS:
        assert found.values["perplexity"] == pytest.approx(math.exp(plain.loss))


def test_perplexity_by_word_and_bits_by_character() -> None:
    """All tokens' nats, shared out among words or characters."""
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    found = score(task, supernet_of(space), networks_of(space, 1)[0], task.valid)
    nats = found.values["loss"] * len(task.valid)
    text = [" ".join(TOKENIZER.decode([row])[0].split()) for row in task.valid.rows]
    num_words, num_characters = sum(len(line.split()) for line in text), len("".join(text))
    assert found.values["word_perplexity"] == pytest.approx(math.exp(nats / num_words))
    bits = nats / math.log(2) / num_characters
    assert found.values["bits_per_character"] == pytest.approx(bits)


def test_bleu_is_of_the_lines_that_translating_gives() -> None:
    task, space = task_of("translation"), SPACES["translation"]
    model: Any = supernet_of(space)
    (network,) = networks_of(space, 1)
    beam = BeamSettings(beam_size=2)
    lines = translate_lines(
        StepwiseTranslator(model, network),
        task.valid.source_lines,
        TOKENIZER,
        TOKENIZER,
        beam,
        max_tokens=1000,
        device="cpu",
    )
    found = score(task, model, network, task.valid, beam=beam)
    wanted = corpus_bleu(lines, task.valid.target_lines)
    assert (found.values["bleu"], found.bleu_signature) == (wanted.score, wanted.signature)


def test_scores_of_a_network_gone_wild_can_be_written_down() -> None:
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    model: Any = supernet_of(space)
    with torch.no_grad():
        model.tables[0].weight.mul_(1e4)
    found = score(task, model, networks_of(space, 1)[0], task.valid).values
    assert found["loss"] > MOST_NATS and math.isfinite(found["perplexity"])
    assert math.isfinite(found["word_perplexity"])


# -- opening ----------------------------------------------------------------------------------


@each_kind
def test_the_generated_data_fit_every_space(kind: str) -> None:
    task = open_task(SPACES[kind], "synthetic", None, 0)
    assert task.kind == kind and task.name == "synthetic"
    assert task.digest == open_task(SPACES[kind], "synthetic", None, 5).digest
    task.check(TrainingSettings(segment_length=32))
    assert len(task.open_test()) > 0


@pytest.mark.parametrize(
    ("text", "task"), [(TRANSLATION, "translation"), (LANGUAGE, "language_modelling")]
)
def test_without_data_the_commands_that_get_them_are_told(text: str, task: str) -> None:
    space = parse_space(text, "space")
    with pytest.raises(DataError) as caught:
        open_task(space, "europarl", None, 0)
    lines = str(caught.value).splitlines()
    assert any(f"nas data prepare --task {task} " in line for line in lines)
    assert f"  nas search --space ./{space.name}.toml --data data/europarl" in lines
    assert "--data synthetic" in lines[-1]


def test_a_shipped_space_is_told_by_its_name() -> None:
    with pytest.raises(DataError, match="nas search --space wmt14 --data data/wmt14"):
        open_task(load_space("wmt14"), "wmt14", None, 0)


def write_corpus(folder: Path) -> None:
    sentences = generate(260, 5)
    for name, part in (
        ("train", slice(200)),
        ("valid", slice(200, 230)),
        ("test", slice(230, 260)),
    ):
        for ending, side in (("en", "source"), ("de", "target"), ("txt", "text")):
            lines = [getattr(sentence, side) for sentence in sentences[part]]
            (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.parametrize("changes", [(), ("separate",)], ids=["joint", "separate"])
@pytest.mark.parametrize("text", [TRANSLATION, LANGUAGE], ids=TEXTS)
def test_the_commands_that_are_told_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, changes: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path)
    if changes and "share_embeddings" in text:
        text = text.replace("share_embeddings = true", "target_vocab_size = 150")
    space = parse_space(text, "space")
    with pytest.raises(DataError) as caught:
        open_task(space, "mine", None, 0)
    command = next(line for line in str(caught.value).splitlines() if "nas data prepare" in line)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    assert done.exit_code == 0, done.output
    task = open_task(space, "mine", "data/mine", 0)
    assert task.describe()["num_train"] > 150 and task.name == "mine"
    assert len(task.open_test()) > 0


def test_folders_of_other_tasks_and_none_at_all(tmp_path: Path) -> None:
    write_corpus(tmp_path)
    given = ["--source", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "valid.txt")]
    given += ["--test", str(tmp_path / "test.txt"), "--vocab-size", "90"]
    given += ["--out", str(tmp_path / "text")]
    prepare = ["data", "prepare", "--task", "language_modelling", *given, "--quiet"]
    done = CliRunner().invoke(app, prepare)
    assert done.exit_code == 0, done.output
    space = SPACES["translation"]
    wrong = "holds data for language_modelling, but translation is needed.*nas data prepare"
    for path, words in (("text", wrong), ("none", "none"), ("train.txt", r"train\.txt")):
        with pytest.raises(DataError, match=words):
            open_task(space, "text", str(tmp_path / path), 0)


@pytest.mark.parametrize("kind", TEXTS)
def test_networks_with_too_few_words_are_refused_the_data(kind: str) -> None:
    text = {"translation": TRANSLATION, "language_modelling": LANGUAGE}[kind]
    space = parse_space(text, "space")
    assert isinstance(space.model.input, TokenInput)
    text = text.replace(f"vocab_size = {space.model.input.vocab_size}", "vocab_size = 20")
    with pytest.raises(DataError, match="vocabulary of synthetic has 100 tokens.*have 20"):
        open_task(parse_space(text, "space"), "synthetic", None, 0)


def test_a_data_set_for_classification_that_nobody_knows() -> None:
    with pytest.raises(UnknownNameError, match="digits"):
        open_task(SPACES["classification"], "digitz", None, 0)
