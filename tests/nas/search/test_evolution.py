"""Evolution: same bytes after resuming, nothing scored twice, limits, tiny spaces."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nas.search.evolution import EvolutionSettings, Generation, Scores, archive, evolve
from nas.search.pareto import hypervolume, non_dominated
from search_spaces.encoding import encode_features, feature_names
from search_spaces.errors import DamagedRunError, NasError, UsageError
from search_spaces.settings import ImageInput, ModelSettings
from search_spaces.space import SearchSpace, Slot
from search_spaces.variation import enumerate_all, largest, sample

SETTINGS = EvolutionSettings(population=24, generations=8)


def make_space(depth=3, ffn=(8, 16, 32, 64), embed=(8, 16, 32)):
    slots = [
        Slot("encoder", "embed_dim", None, embed),
        Slot("encoder", "num_layers", None, tuple(range(1, depth + 1))),
    ]
    for layer in range(depth):
        slots += [
            Slot("encoder", "attention", layer, ("softmax", "linear")),
            Slot("encoder", "num_heads", layer, (1, 2)),
            Slot("encoder", "ffn_dim", layer, ffn),
        ]
    model = ModelSettings(ImageInput(8, 2, 1), max_length=16, num_classes=10, head_dim=8)
    return SearchSpace("toy", "classification", model, tuple(slots))


SPACE = make_space()
TINY = make_space(depth=1, ffn=(8, 16), embed=(8, 16))


class Landscape:
    """Loss falls with size, cost rises; a limit on the cost; counts who was asked."""

    def __init__(self, space, limit=np.inf):
        self.space, self.limit, self.asked = space, limit, []

    def __call__(self, genotypes):
        self.asked += [row.tobytes() for row in genotypes]
        features = encode_features(self.space, genotypes)
        column = feature_names(self.space).index
        embed = features[:, column("encoder.embed_dim")]
        total = features[:, column("encoder.sum.ffn_dim")]
        linear = features[:, column("encoder.count.attention=linear")]
        cost = embed * (total + 16) - 10 * linear
        loss = 1 / np.log(embed * total) + 0.1 / (1 + total) + 0.002 * linear
        return Scores(np.column_stack([loss, cost]), np.maximum(0, cost - self.limit))


def run(space=SPACE, settings=SETTINGS, seed=0, limit=np.inf, **more):
    return list(evolve(space, Landscape(space, limit), settings, seed, **more))


def text(generations):
    return [json.dumps(generation.to_json()) for generation in generations]


def test_same_seed_same_bytes_other_seed_not():
    assert text(run(seed=3)) == text(run(seed=3))
    assert text(run(seed=3)) != text(run(seed=4))


@pytest.mark.parametrize("done", [0, 1, 4, 8, 9])
def test_resuming_from_the_journal_ends_with_the_same_bytes(done):
    whole = run(limit=900.0)
    journal = [Generation.from_json(json.loads(line)) for line in text(whole[:done])]
    landscape = Landscape(SPACE, 900.0)
    rest = list(evolve(SPACE, landscape, SETTINGS, 0, done=journal))
    assert text(journal + rest) == text(whole)
    before = {row.tobytes() for generation in journal for row in generation.genotypes}
    assert not before & set(landscape.asked)


def test_no_network_is_scored_twice_and_all_are_canonical():
    landscape = Landscape(SPACE)
    generations = list(evolve(SPACE, landscape, SETTINGS, 1))
    assert len(landscape.asked) == len(set(landscape.asked)) == 24 * 9
    for generation in generations:
        assert (SPACE.canonical(generation.genotypes) == generation.genotypes).all()
        assert (generation.genotypes < SPACE.num_choices).all()


@pytest.mark.parametrize("population", [2, 5, 24, 100])
def test_a_small_space_is_searched_to_the_end_and_no_further(population):
    settings = EvolutionSettings(population=population, generations=60)
    landscape = Landscape(TINY)
    found = archive(evolve(TINY, landscape, settings, 0))
    rows = enumerate_all(TINY)
    assert len(landscape.asked) == TINY.size == len(rows)
    points = Landscape(TINY)(rows).objectives
    front = rows[non_dominated(points)]
    assert {row.tobytes() for row in front} == {row.tobytes() for row in found.genotypes}


def test_a_space_of_one_network():
    one = TINY.restrict({slot.name: slot.choices[:1] for slot in TINY.slots})
    generations = list(evolve(one, lambda g: Scores(g + 1.0, np.zeros(1)), SETTINGS, 0))
    assert [len(generation.genotypes) for generation in generations] == [1]


def test_evolution_beats_random_search_of_the_same_length():
    settings = EvolutionSettings(population=32, generations=15)
    landscape = Landscape(SPACE)
    found = archive(evolve(SPACE, landscape, settings, 0))
    rng = np.random.default_rng(0)
    points = landscape(sample(SPACE, rng, len(landscape.asked))).objectives
    reference = [0.5, 8000.0]
    assert hypervolume(found.objectives, reference) > hypervolume(points, reference)


def test_limits_hold_in_the_archive():
    free, limited = archive(run()), archive(run(limit=600.0))
    assert free.objectives[:, 1].max() > 600
    assert len(limited.genotypes) > 2
    assert limited.objectives[:, 1].max() <= 600
    assert (np.diff(limited.objectives[:, 0]) >= 0).all()


def test_an_unreachable_limit_leaves_an_empty_archive_but_closes_in():
    generations = run(limit=-1e9)
    assert len(archive(generations).genotypes) == 0
    assert generations[-1].violations.min() <= generations[0].violations.min()


def test_start_rows_are_in_the_first_generation_once():
    start = np.repeat(largest(SPACE), 2, axis=0)
    first = run(start=start)[0].genotypes
    assert len(first) == 24
    assert (first == start[0]).all(axis=1).sum() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["objectives", "violations"])
def test_a_score_that_is_not_finite_stops_and_names_the_network(value, where):
    def evaluate(genotypes):
        scores = Landscape(SPACE)(genotypes)
        getattr(scores, where)[3] = value
        return scores

    with pytest.raises(NasError, match=r"not a finite number.*genotype \["):
        next(evolve(SPACE, evaluate, SETTINGS, 0))


def test_scores_of_another_number_are_refused():
    with pytest.raises(NasError, match="24 networks"):
        next(evolve(SPACE, lambda g: Scores(np.zeros((3, 2)), np.zeros(3)), SETTINGS, 0))


@pytest.mark.parametrize(
    "change",
    [
        {"violations": [0.0]},
        {"genotypes": None},
        {"genotypes": [[1, 2], [3]]},
        {"objectives": "x"},
        {"violations": 0.0},
        {"genotypes": [[99999] * 11]},
    ],
)
def test_a_damaged_journal_line_is_reported(change):
    line = run(settings=EvolutionSettings(4, 0))[0].to_json()
    with pytest.raises(DamagedRunError, match="damaged"):
        Generation.from_json(line | change)


def test_a_gap_in_the_journal_is_reported():
    generations = run()
    with pytest.raises(DamagedRunError, match=r"generation 1 .* missing"):
        run(done=[generations[0], generations[2]])


@pytest.mark.parametrize(
    "wrong",
    [{"population": 1}, {"generations": -1}, {"mutation_rate": 1.1}, {"random_share": -0.1}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError):
        EvolutionSettings(**wrong)


def test_an_archive_of_nothing_is_refused():
    with pytest.raises(UsageError, match="no generation"):
        archive([])
