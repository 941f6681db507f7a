"""The task of embedding texts: what is learnt, and what networks are compared by."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch import Tensor

from nas.objectives import QUALITIES, objective
from nas.report.words import with_unit
from nas.run.evaluator import validation_quality
from nas.search.front import Front
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import dump_space, parse_space
from supernet.building import build_network
from supernet.extraction import StandAlone, extract
from supernet.slices import Slices
from supernet.tasks import embedding
from supernet.tasks.embedding import EmbeddingTask, neighbours_found, passages_found, similarity
from supernet.tasks.evaluation import evaluate, score
from supernet.tasks.opening import open_task
from supernet.training.gradients import add_gradients
from supernet.training.parallel import Group, Share
from supernet.training_settings import TrainingSettings
from tests.support.embedding_cases import SPACE, TRAIN, VALID, WIDTH, embedding_task, split_of
from tests.support.task_cases import networks_of, supernet_of

SETTINGS = TrainingSettings(batch_size=16)


def vectors(count: int, seed: int) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def cosine(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


def naive_similarity(found: Tensor, right: Tensor) -> float:
    """Spearman's correlation over all pairs, by its definition: Pearson's of the ranks."""
    pairs = list(itertools.combinations(range(len(found)), 2))
    ranks = [rankdata([cosine(side[a], side[b]) for a, b in pairs]) for side in (found, right)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def naive_recall(found: Tensor, right: Tensor, most: int = 10) -> float:
    shares = []
    for query in range(len(found)):
        others = [n for n in range(len(found)) if n != query]
        near = [
            set(sorted(others, key=lambda n: -cosine(side[query], side[n]))[:most])
            for side in (found, right)
        ]
        shares.append(len(near[0] & near[1]) / len(near[1]))
    return sum(shares) / len(shares)


# -- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 11, 40])
def test_scores_are_those_of_the_naive_twins(count: int) -> None:
    right = vectors(count, 0)
    found = right + vectors(count, 1)
    if count > 2:  # one pair has no order
        assert similarity(found, right) == pytest.approx(naive_similarity(found, right), abs=1e-6)
    assert neighbours_found(found, right) == pytest.approx(naive_recall(found, right))


def test_the_checkpoint_itself_has_the_best_scores_whatever_the_lengths() -> None:
    right = vectors(40, 0)
    longer = right * torch.linspace(0.1, 9.0, 40)[:, None]
    assert similarity(longer, right) == pytest.approx(1.0, abs=1e-6)
    assert neighbours_found(longer, right) == 1.0
    assert similarity(-right, right) == pytest.approx(1.0, abs=1e-6)  # the same pairs are alike


def test_a_network_that_says_always_the_same_has_no_similarity() -> None:
    assert similarity(torch.ones(30, WIDTH), vectors(30, 0)) == 0.0
    assert similarity(torch.zeros(30, WIDTH), vectors(30, 0)) == 0.0


def test_embeddings_that_are_no_numbers_have_no_scores() -> None:
    found = vectors(30, 1)
    found[4, 2] = float("nan")
    assert np.isnan(similarity(found, vectors(30, 0)))
    assert np.isnan(neighbours_found(found, vectors(30, 0)))


def test_of_many_texts_some_pairs_and_queries_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    right = vectors(120, 0)
    found = right + vectors(120, 1)
    whole = similarity(found, right), neighbours_found(found, right)
    monkeypatch.setattr(embedding, "MOST_PAIRS", 3_000)
    monkeypatch.setattr(embedding, "MOST_QUERIES", 50)
    monkeypatch.setattr(embedding, "CHUNK", 7)
    drawn = similarity(found, right), neighbours_found(found, right)
    assert drawn == (similarity(found, right), neighbours_found(found, right))
    assert drawn != whole and drawn == pytest.approx(whole, abs=0.1)
    first, second = embedding._pairs(120)
    assert len(first) == 3_000 and bool((first != second).all()) and int(second.max()) < 120


def test_a_network_is_scored() -> None:
    task, model, (network,) = embedding_task(), supernet_of(SPACE), networks_of(SPACE, 1)
    found = score(task, model, network, task.valid)
    assert found.headline == "similarity" and found.count == VALID
    tokens = torch.from_numpy(task.valid.texts.padded())
    with torch.no_grad():
        embedded = model.eval()(tokens, network)[1]
    targets = torch.from_numpy(np.array(task.valid.targets))
    assert found.values == pytest.approx(
        {
            "loss": 1 - np.mean([cosine(a, b) for a, b in zip(embedded, targets, strict=True)]),
            "similarity": naive_similarity(embedded, targets),
            "recall_at_10": naive_recall(embedded, targets),
        },
        abs=1e-5,
    )


@pytest.mark.parametrize("metric", ["loss", "similarity", "recall_at_10"])
def test_each_can_be_quality(metric: Any) -> None:
    task, model, (network,) = embedding_task(), supernet_of(SPACE), networks_of(SPACE, 1)
    plain = evaluate(task, model, network, task.valid)
    found = validation_quality(task, model, network, metric, "cpu")
    assert found.pop("quality") == QUALITIES[metric].of(plain.scores)
    apart = {} if metric == "loss" else {"valid_loss": plain.loss}
    assert found == {f"valid_{name}": v for name, v in plain.compared.items()} | apart
    assert plain.accuracy is None
    assert "nats" not in with_unit("quality", "embedding", metric)
    goal = objective("quality", metric, "embedding")
    assert goal.unit == {"loss": "1 - cosine", "similarity": "correlation"}.get(metric, "share")
    line = {**goal.to_json(), "reference": 1.0}
    entry = {"id": network.id, "architecture": network.to_json(), "predicted": {"quality": 0.1}}
    entry["measured"] = {"quality": 0.5}
    data = {"schema": 1, "objectives": [line], "front": [entry], "hypervolume": 0.5}
    assert Front.from_json(data).objectives == (goal,)


def test_a_network_that_knows_nothing_has_the_loss_of_guessing() -> None:
    task, model = embedding_task(), supernet_of(SPACE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    found = evaluate(task, model, networks_of(SPACE, 1)[0], task.valid)
    assert found.loss == task.guessing_loss == 1.0


# -- pairs of query and passage -------------------------------------------------------------------


def naive_found(found: Tensor, pairs: list[tuple[int, int]], most: int = 10) -> float:
    passages = sorted({passage for _, passage in pairs})
    right = 0
    for query, own in pairs:
        ranked = sorted(
            (p for p in passages if p != query), key=lambda p: -cosine(found[query], found[p])
        )
        right += own in ranked[:most]
    return right / len(pairs)


@pytest.mark.parametrize("count", [2, 13, 90])
def test_passages_found_are_those_of_the_naive_twin(count: int) -> None:
    drawn = np.random.default_rng(count)
    found = vectors(count, 0)
    pairs = [tuple(drawn.choice(count, 2, replace=False).tolist()) for _ in range(count)]
    pairs = list(dict.fromkeys(pairs))  # some texts are queries and passages, or asked for twice
    assert passages_found(found, np.array(pairs)) == pytest.approx(naive_found(found, pairs))


def test_a_network_to_which_all_texts_are_alike_finds_nothing() -> None:
    pairs = np.arange(60).reshape(-1, 2)
    assert passages_found(torch.ones(60, WIDTH), pairs) == 0.0
    assert passages_found(vectors(30, 0).repeat_interleave(2, dim=0), pairs) == 1.0
    assert np.isnan(passages_found(torch.full((60, WIDTH), torch.inf), pairs))


def test_few_passages_are_all_found() -> None:
    assert passages_found(vectors(20, 0), np.arange(20).reshape(-1, 2)) == 1.0


def test_of_many_pairs_some_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    found, pairs = vectors(160, 0), np.arange(160).reshape(-1, 2)
    whole = passages_found(found, pairs)
    monkeypatch.setattr(embedding, "MOST_QUERIES", 50)
    monkeypatch.setattr(embedding, "CHUNK", 7)
    drawn = passages_found(found, pairs)
    assert drawn == passages_found(found, pairs) != whole
    assert drawn == pytest.approx(whole, abs=0.2)


def with_pairs(count: int) -> EmbeddingTask:
    task = embedding_task()
    valid = split_of(count, 1)
    task.valid = replace(valid, pairs=np.random.default_rng(0).permutation(count).reshape(-1, 2))
    return task


def test_a_network_is_scored_by_its_queries_beside_the_checkpoint() -> None:
    task, model, (network,) = with_pairs(60), supernet_of(SPACE), networks_of(SPACE, 1)
    with torch.no_grad():
        embedded = model.eval()(torch.from_numpy(task.valid.texts.padded()), network)[1]
    assert task.valid.pairs is not None
    pairs = [(int(a), int(b)) for a, b in task.valid.pairs]
    found = score(task, model, network, task.valid).values
    assert found["recall_at_10"] == pytest.approx(naive_found(embedded, pairs))
    targets = torch.from_numpy(np.array(task.valid.targets))
    assert found["checkpoint_recall_at_10"] == pytest.approx(naive_found(targets, pairs))
    assert task.describe()["num_valid_pairs"] == 30


@pytest.mark.parametrize("count", [1, 2, 7, 20])
def test_fewer_validation_texts_are_those_of_whole_pairs(count: int) -> None:
    task = with_pairs(60)
    valid = task.with_valid(count).valid
    assert valid.pairs is not None and task.valid.pairs is not None
    assert len(valid.pairs) == max(1, count // 2) and len(valid) == 2 * len(valid.pairs)
    count = len(valid.pairs)
    from_all_over = task.valid.pairs[[place * 30 // count for place in range(count)]]
    for few, many in zip(valid.pairs, from_all_over, strict=True):
        for row, before in zip(few, many, strict=True):
            assert valid.texts[row].tolist() == task.valid.texts[before].tolist()
            assert np.array_equal(valid.targets[row], task.valid.targets[before])
    assert task.with_valid(60) is task


# -- training -------------------------------------------------------------------------------------


def test_every_text_comes_once_with_its_vector() -> None:
    task = embedding_task()
    batches = list(task.batches(SETTINGS, seed=0, epoch=0, device="cpu"))
    assert [len(one) for one in batches].count(16) == 2 and task.num_batches(SETTINGS) == 3
    rows = {
        tuple(row[row != 0].tolist()): target
        for one in batches
        for row, target in zip(one.tokens, one.targets, strict=True)
    }
    texts, targets = task.train.texts, task.train.targets
    assert sum(map(len, batches)) == TRAIN
    for number in range(TRAIN):
        known = rows[tuple(texts[number].tolist())]
        same = [n for n in range(TRAIN) if texts[n].tolist() == texts[number].tolist()]
        assert any(np.array_equal(known.numpy(), targets[n]) for n in same)
    again = list(task.batches(SETTINGS, seed=0, epoch=0, device="cpu"))
    other = list(task.batches(SETTINGS, seed=0, epoch=1, device="cpu"))
    assert all(torch.equal(a.targets, b.targets) for a, b in zip(batches, again, strict=True))
    assert not all(torch.equal(a.targets, b.targets) for a, b in zip(batches, other, strict=True))


def test_a_batch_is_so_many_texts_however_many_tokens_they_have() -> None:
    task, few = embedding_task(), replace(SETTINGS, max_tokens=1)
    task.check(few)
    sizes = [len(b) for b in task.batches(few, seed=0, epoch=0, device="cpu")]
    assert max(sizes) == SETTINGS.batch_size and len(sizes) == task.num_batches(few)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"loss_chunk": 8}, "those of embedding"), ({"augmentation": "flip"}, "none in embedding")],
)
def test_settings_of_tokens_and_images_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        embedding_task().check(replace(SETTINGS, **settings))


@pytest.mark.parametrize("distillation", [0.0, 0.75])
def test_the_shares_of_two_ranks_make_the_update(distillation: float) -> None:
    task, networks = embedding_task(), networks_of(SPACE, 2)
    settings = replace(SETTINGS, distillation=distillation)
    (batch, *_) = task.batches(settings, seed=0, epoch=0, device="cpu")
    teacher = extract(supernet_of(SPACE).eval(), networks[0]).requires_grad_(False)

    def gradients(shares: list[Share]) -> list[Tensor]:
        model = supernet_of(SPACE)
        for share in shares:
            add_gradients(
                task,
                model,
                share,
                networks,
                settings,
                device="cpu",
                slices=Slices(model),
                teacher=teacher,
            )
        return [p.grad for p in model.parameters() if p.grad is not None]

    class Rank(Group):
        def __init__(self, rank: int) -> None:
            self.rank, self.size = rank, 2

    together = gradients([share for rank in (0, 1) for share in Rank(rank).shares([batch])])
    for one, other in zip(gradients(Group().shares([batch])), together, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_a_teacher_tells_its_states_of_all_tokens() -> None:
    """By the definition, text after text and token after token, whatever the padding."""
    task, model, networks = embedding_task(), supernet_of(SPACE).eval(), networks_of(SPACE, 2)
    settings = replace(SETTINGS, distillation=0.75)
    (batch, *_) = task.batches(settings, seed=0, epoch=0, device="cpu")
    assert (batch.tokens == 0).any(), "some texts are padded"
    with torch.no_grad():
        own, taught = (task.predict(model, batch, network) for network in networks)
        found = float(task.loss(own, task.soft_labels(taught), settings))
        states = [model(batch.tokens, network)[0] for network in networks]
    texts = []
    for row, tokens in enumerate(batch.tokens):
        real = [n for n, token in enumerate(tokens) if token != 0]
        near = [cosine(states[0][row, n], states[1][row, n]) for n in real]
        whole = cosine(own.logits[row], batch.targets[row])
        texts.append(0.25 * (1.0 - whole) + 0.75 * (1.0 - sum(near) / len(near)))
    assert found == pytest.approx(sum(texts) / len(texts), abs=1e-5)


def test_states_that_were_kept_teach_as_the_teacher_does() -> None:
    networks, settings = networks_of(SPACE, 2), replace(SETTINGS, distillation=0.75)
    teacher = extract(supernet_of(SPACE).eval(), networks[0]).requires_grad_(False)

    def gradients(task: EmbeddingTask, teacher: StandAlone) -> list[Tensor]:
        (batch, *_) = task.batches(settings, seed=0, epoch=0, device="cpu")
        model = supernet_of(SPACE)
        for share in Group().shares([batch], parts=2):
            slices = Slices(model)
            add_gradients(
                task, model, share, networks, settings, device="cpu", slices=slices, teacher=teacher
            )
        return [p.grad for p in model.parameters() if p.grad is not None]

    task = embedding_task()
    kept, texts = embedding_task(), task.train.texts
    with torch.no_grad():
        rows = [torch.tensor([texts[n].tolist()]) for n in range(len(texts))]
        said = [teacher.network(row, networks[0])[0][0] for row in rows]
    states = torch.nn.functional.normalize(torch.cat(said), dim=-1).half().numpy()
    kept.train = replace(task.train, states=states)
    silent = copy.deepcopy(teacher)
    silent.network = None  # nobody asks it
    for one, other in zip(gradients(task, teacher), gradients(kept, silent), strict=True):
        assert torch.allclose(one, other, atol=2e-4)
    assert next(kept.batches(SETTINGS, seed=0, epoch=0, device="cpu")).states is None


def test_nothing_is_left_to_learn_from_oneself() -> None:
    task, model, (network,) = embedding_task(), supernet_of(SPACE).eval(), networks_of(SPACE, 1)
    settings = replace(SETTINGS, distillation=1.0)
    (batch, *_) = task.batches(settings, seed=0, epoch=0, device="cpu")
    with torch.no_grad():
        own = task.predict(model, batch, network)
        assert float(task.loss(own, task.soft_labels(own), settings)) == pytest.approx(0, abs=1e-5)


def test_a_network_of_its_own_embeds_as_the_supernet_does() -> None:
    model, (network,) = supernet_of(SPACE).eval(), networks_of(SPACE, 1)
    tokens = torch.from_numpy(split_of(5, 3).texts.padded())
    with torch.no_grad():
        own = extract(model, network)(tokens)[1]
        assert torch.allclose(own, model(tokens, network)[1], atol=1e-6)
    built = build_network(SPACE.model, "embedding", network)
    assert sum(p.numel() for p in built.parameters()) > 0
    assert torch.allclose(own.norm(dim=1), torch.ones(5))


@pytest.mark.parametrize("count", [2, 5, VALID - 1])
def test_fewer_validation_texts_lie_all_over_the_split(count: int) -> None:
    """Its files may follow one another, so that the first ones are all of one."""
    whole, valid = embedding_task().valid, embedding_task().with_valid(count).valid
    assert len(valid) == len(valid.targets) == count
    for row in range(count):
        before = row * VALID // count
        assert valid.texts[row].tolist() == whole.texts[before].tolist()
        assert np.array_equal(valid.targets[row], whole.targets[before])


def test_two_texts_are_the_fewest_to_compare() -> None:
    task = embedding_task()
    assert len(task.with_valid(1).valid) == 2 and len(task.with_valid(99).valid) == VALID
    assert len(task.valid) == VALID


# -- what is refused ------------------------------------------------------------------------------


def test_data_without_targets_are_refused() -> None:
    with pytest.raises(DataError, match="prepare --task embedding --tokenizer MODEL"):
        open_task(SPACE, "synthetic", None, 0)


def test_logits_in_chunks_are_refused() -> None:
    task, model, networks = embedding_task(), supernet_of(SPACE), networks_of(SPACE, 1)
    (batch, *_) = task.batches(SETTINGS, seed=0, epoch=0, device="cpu")
    chunked = replace(SETTINGS, loss_chunk=4)
    with pytest.raises(UsageError, match="tell one thing of an input: set it to 0"):
        share, slices = Share(batch, 1.0), Slices(model)
        add_gradients(task, model, share, networks, chunked, device="cpu", slices=slices)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("unit_length = true", "num_classes = 3", "num_classes belongs to classification"),
        ("[model.input]\n", "[model.input]\ntarget_vocab_size = 9\n", "belong to translation"),
    ],
)
def test_settings_of_other_tasks_are_refused(old: str, new: str, words: str) -> None:
    text = dump_space(SPACE)
    assert text.count(old) == 1, text
    with pytest.raises(Exception, match=words):
        parse_space(text.replace(old, new), "space")
