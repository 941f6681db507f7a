"""Each task is judged on its validation split as one example after the other would be."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from search_spaces.errors import UsageError
from supernet.beam_search import BeamSettings
from supernet.data.repeated_bigrams import with_recalled
from supernet.data.text_files import TokenRows
from supernet.data.tokenizer import BOS, EOS
from supernet.tasks import language_modelling, translating, translation
from supernet.tasks.bleu import corpus_bleu
from supernet.tasks.evaluation import by_distance, evaluate, loss_error, score
from supernet.tasks.language_modelling import LanguageModellingTask
from supernet.tasks.texts import MOST_NATS
from supernet.tasks.translating import StepwiseTranslator, translate_lines
from tests.support.task_cases import (
    SEGMENT,
    SENTENCES,
    SETTINGS,
    SPACES,
    TEST,
    TEXTS,
    TOKENIZER,
    TRAIN,
    VALID,
    each_kind,
    first_batch,
    networks_of,
    supernet_of,
    task_of,
)


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


# -- validation -------------------------------------------------------------------------------


def test_the_error_of_the_loss_is_that_of_a_mean() -> None:
    task, space = task_of("classification"), SPACES["classification"]
    (network,) = networks_of(space, 1)
    losses = torch.stack([F.cross_entropy(*one) for one in valid_logits("classification")])
    expected = losses.double().std().item() / math.sqrt(VALID)
    found = loss_error(task, supernet_of(space), network, task.valid)
    assert found == pytest.approx(expected, rel=1e-5)
    assert loss_error(task, supernet_of(space), network, task.with_valid(1).valid) is None


def test_tokens_are_no_examples_of_their_own() -> None:
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    (network,) = networks_of(space, 1)
    assert loss_error(task, supernet_of(space), network, task.valid) is None


@each_kind
@pytest.mark.parametrize("count", [1, 5, VALID, VALID + 1])
def test_of_the_validation_split_some_are_taken(kind: str, count: int) -> None:
    task = task_of(kind)
    fewer = task.with_valid(count)
    assert fewer.describe()["num_valid"] == min(count, VALID)
    assert task.describe()["num_valid"] == VALID
    assert fewer.train is task.train and fewer.digest == task.digest


@pytest.mark.parametrize("count", [1, 3, VALID - 1])
def test_some_pairs_lie_all_over_the_split_with_their_text(count: int) -> None:
    """Its files may follow one another, so that the first ones are all of one."""
    whole, valid = (task_of("translation").with_valid(n).valid for n in (VALID, count))
    numbers = [place * VALID // count for place in range(count)]
    for side in ("source", "target"):
        lines = getattr(valid, f"{side}_lines")
        assert lines == tuple(getattr(whole, f"{side}_lines")[number] for number in numbers)
        rows = TokenRows.of(TOKENIZER.encode(lines))
        assert [list(row) for row in getattr(valid, side)] == [list(row) for row in rows]


def spread(count: int, total: int) -> list[int]:
    """Numbers of lines in sixteen stretches, or as many as there are lines to take."""
    parts, found = min(16, count), list[int]()
    for part in range(parts):
        own = [line for line in range(count) if line * parts // count == part]
        found += [line + part * (total - count) // max(1, parts - 1) for line in own]
    return found


@pytest.mark.parametrize("count", [1, 2, 5, 16, 33, VALID - 7, VALID - 1, VALID, VALID + 1])
def test_some_lines_of_a_text_lie_all_over_it(count: int) -> None:
    """With the words and characters of just these lines."""
    task = task_of("language_modelling")
    assert isinstance(task, LanguageModellingTask)
    found = task.with_valid(count).valid
    numbers = spread(count, VALID) if count < VALID else range(VALID)
    assert len(set(numbers)) == len(numbers) and max(numbers) < VALID
    assert [list(row) for row in found.rows] == [list(task.valid.rows[n]) for n in numbers]
    lines = [SENTENCES[TRAIN + number].text for number in numbers]
    assert found.num_words == sum(len(line.split()) for line in lines)
    assert found.num_characters == sum(len(line) for line in lines)


def test_what_is_recalled_is_marked_anew_in_some_lines() -> None:
    task: Any = copy.copy(task_of("language_modelling"))
    task._recall_window, task._segment_length = 2, 10_000
    part = task.with_valid(VALID - 1).valid
    expected = with_recalled(part, 10_000, 2)
    assert part.recalled is not None and part.recalled.tolist() == expected.recalled.tolist()


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


# -- scores -----------------------------------------------------------------------------------

SCORES = {
    "classification": ["accuracy", "loss"],
    "translation": ["accuracy", "bleu", "loss", "perplexity"],
    "language_modelling": [
        "accuracy",
        "bits_per_character",
        "loss",
        "perplexity",
        "perplexity_per_word",
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
    as_published = math.exp(nats / (num_words + len(task.valid.rows)))
    assert found.values["perplexity_per_word"] == pytest.approx(as_published)
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
    assert math.isfinite(found["perplexity_per_word"])


def test_where_every_token_is_a_word_or_an_end_both_perplexities_are_one() -> None:
    """The published convention: with a vocabulary of words, tokens are words and ends of lines."""
    task, space = task_of("language_modelling"), SPACES["language_modelling"]
    assert isinstance(task, LanguageModellingTask)
    valid = task.valid
    assert len(valid) == valid.num_words + len(valid.rows)
    found = score(task, supernet_of(space), networks_of(space, 1)[0], valid).values
    assert found["perplexity_per_word"] == pytest.approx(found["perplexity"])
    assert found["word_perplexity"] > 1.05 * found["perplexity"]


def test_fewer_examples_hold_every_class_in_its_share() -> None:
    """Also where they lie class by class, as folders of pictures do."""
    task: Any = task_of("classification")
    labels = torch.arange(3).repeat_interleave(torch.tensor([60, 30, 10]))
    inputs = torch.arange(100).float().reshape(100, 1, 1, 1)
    task = copy.copy(task)
    task.valid = replace(task.valid, inputs=inputs, labels=labels)
    some = task.with_valid(20).valid
    assert torch.bincount(some.labels).tolist() == [12, 6, 2]
    assert torch.equal(some.labels, labels[some.inputs.flatten().long()])
    assert torch.equal(task.with_valid(20).valid.inputs, some.inputs)
    assert task.with_valid(100) is task


def test_lines_that_stand_alone_are_read_whole_whatever_their_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task: Any = copy.copy(task_of("language_modelling"))
    task._segment_length = 2
    model: Any = supernet_of(SPACES["language_modelling"])
    (network,) = networks_of(SPACES["language_modelling"], 1)
    split = replace(task.valid, alone=True)
    assert split.rows.lengths.max() > 2
    told = []
    for tokens in (10_000, 1):
        monkeypatch.setattr(language_modelling, "EVALUATION_TOKENS", tokens)
        apart = by_distance(task, model, network, split)
        nats = [one["nats"] for stretches in apart.values() for one in stretches]
        told.append([evaluate(task, model, network, split).loss, *nats])
    assert told[1] == pytest.approx(told[0], rel=1e-5)


def test_batches_hold_the_longest_line_unless_they_are_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(translating, "DECODING_TOKENS", 1)
    task, model = task_of("translation").with_valid(1), supernet_of(SPACES["translation"])
    (network,) = networks_of(SPACES["translation"], 1)
    assert score(task, model, network, task.valid).bleu_signature is not None
    # More beams than usual may take more memory than there is: they have to be asked for.
    many = BeamSettings(beam_size=BeamSettings().beam_size + 1)
    for beam, most in ((None, 1), (many, None)):
        with pytest.raises(UsageError, match="cannot hold line 1, .* allow at least that many"):
            score(task, model, network, task.valid, beam=beam, max_tokens=most)


def test_a_source_that_was_cut_is_translated_as_it_was_cut() -> None:
    task: Any = task_of("translation")
    model: Any = supernet_of(SPACES["translation"]).eval()
    (network,) = networks_of(SPACES["translation"], 1)
    split = task.valid
    longer = " ".join([split.source_lines[0]] * 50)
    cut = replace(split, source_lines=(longer, *split.source_lines[1:]))
    found = [translation.split_bleu(task, model, network, one, "cpu") for one in (split, cut)]
    assert found[0] == found[1]
