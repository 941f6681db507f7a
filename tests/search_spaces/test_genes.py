"""Spaces of genes of one's own: which are there, how many networks, TOML, columns, searches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from nas.search.evolution import EvolutionSettings, Scores
from nas.search.searchers.base import Problem, Searcher, search
from nas.search.searchers.one_shot import OneShot
from nas.search.searchers.optuna_study import OptunaSearcher
from nas.search.searchers.rank_evolve import RankEvolve, RankEvolveSettings
from search_spaces.encoding import cost_terms, encode_features, feature_names
from search_spaces.errors import ArchitectureError, SpaceFileError, UsageError
from search_spaces.genes import (
    Gene,
    GeneNetwork,
    GeneSpace,
    dump_genes,
    given_genes,
    load_genes,
    parse_genes,
)
from search_spaces.genotypes import Genotypes
from search_spaces.loading import parse_space
from search_spaces.variation import (
    crossover,
    distinct,
    enumerate_all,
    largest,
    mutate,
    neighbours,
    sample,
    sample_distinct,
    smallest,
)

TOML = """
[space]
name = "tiny"
description = "Two layers at most"

[genes.width]
integer = [8, 16, 32]

[genes.layers]
integer = { from = 1, to = 2 }

[genes.ratio]
integer = [2, 4]
per_layer = "layers"

[genes.kind]
category = ["plain", "gated"]
per_layer = "layers"

[genes.gate]
real = { from = 0.1, to = 0.3, step = 0.1 }
per_layer = "layers"
when = { kind = ["gated"] }

[genes.norm]
category = ["layer", "rms"]

[genes.eps]
real = [1e-6, 1e-5]
when = { norm = ["rms"] }
"""


@pytest.fixture(scope="module")
def tiny() -> GeneSpace:
    return parse_genes(TOML, "tiny.toml")


def test_size_counts_every_network_once(tiny: GeneSpace) -> None:
    # A layer: 2 ratios, plain or gated with 3 gates. Norm: layer, or rms with 2 eps.
    layer = 2 * (1 + 3)
    assert tiny.size == 3 * (layer + layer**2) * (1 + 2)
    rows = enumerate_all(tiny)
    assert len(rows) == len(distinct(rows)) == tiny.size
    assert (tiny.canonical(rows) == rows).all()


def test_networks_are_mappings_of_what_is_there(tiny: GeneSpace) -> None:
    rows = sample_distinct(tiny, np.random.default_rng(0), 60)
    networks = tiny.decode(rows)
    assert (tiny.encode(networks) == rows).all()
    for network in networks:
        assert len(network["ratio"]) == len(network["gate"]) == network["layers"]
        assert ("eps" in network) == (network["norm"] == "rms")
        gated = [kind == "gated" for kind in network["kind"]]
        assert [gate is not None for gate in network["gate"]] == gated
        assert tiny.contains(network)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"width": 9}, "width is 9"),
        ({"ratio": [2]}, "ratio"),
        ({"ratio": 2}, "ratio"),
        ({"gate": [0.1, 0.1]}, "gate"),
        ({"colour": "red"}, "colour"),
        ({"eps": 1e-6}, "eps"),
    ],
)
def test_other_networks_are_refused(tiny: GeneSpace, change: dict[str, object], words: str) -> None:
    network = {
        "width": 8,
        "layers": 2,
        "ratio": [2, 4],
        "kind": ["plain", "gated"],
        "gate": [None, 0.2],
        "norm": "layer",
    }
    assert tiny.contains(network)
    with pytest.raises(ArchitectureError, match=words):
        tiny.encode([{**network, **change}])


def test_operators_stay_inside(tiny: GeneSpace) -> None:
    rng = np.random.default_rng(1)
    a, b = sample(tiny, rng, 200), sample(tiny, rng, 200)
    everything = {row.tobytes() for row in enumerate_all(tiny)}
    for rows in (a, mutate(tiny, a, 0.5, rng), crossover(tiny, a, b, rng)):
        assert {row.tobytes() for row in rows} <= everything
    (low,), (high,) = tiny.decode(smallest(tiny)), tiny.decode(largest(tiny))
    assert low["width"] == 8 and low["layers"] == 1
    assert high["width"] == 32 and high["ratio"] == [4, 4]


def test_neighbours_repeat_the_last_layer(tiny: GeneSpace) -> None:
    (row,) = tiny.encode(
        [{"width": 8, "layers": 1, "ratio": [4], "kind": ["gated"], "gate": [0.3], "norm": "layer"}]
    )
    found = tiny.decode(neighbours(tiny, row))
    (deeper,) = [network for network in found if network["layers"] == 2]
    assert deeper["ratio"] == [4, 4] and deeper["gate"] == [0.3, 0.3]
    # width 2, layers 1, ratio 1, kind 1, gate 2, norm 1
    assert len(found) == 8


def test_columns_are_sums_counts_and_products(tiny: GeneSpace) -> None:
    network = {
        "width": 16,
        "layers": 2,
        "ratio": [2, 4],
        "kind": ["gated", "plain"],
        "gate": [0.3, None],
        "norm": "rms",
        "eps": 1e-5,
    }
    (values,) = encode_features(tiny, tiny.encode([network]))
    column = dict(zip(feature_names(tiny), values.tolist(), strict=True))
    assert len(column) == len(values)
    assert column["width"] == 16 and column["layers"] == 2 and column["norm=rms"] == 1
    assert column["sum.ratio"] == 6 and column["width*sum.ratio"] == 96
    assert column["count.kind=gated"] == 1 and column["sum.gate"] == pytest.approx(0.3)
    assert column["ratio.1"] == 4 and column["kind.0=gated"] == 1 and column["gate.1"] == 0


def test_time_is_a_sum_of_layers_times_sizes(tiny: GeneSpace) -> None:
    names = feature_names(tiny)
    terms = [tuple(names[i] for i in factors) for factors in cost_terms(tiny)]
    assert len(set(terms)) == len(terms)
    assert {("width",), ("layers",), ("layers", "width"), ("sum.ratio", "width", "width")} < {
        *terms
    }
    assert ("count.kind=gated", "norm=rms") in terms and ("width", "norm=rms") in terms
    assert ("norm=rms", "norm=rms") not in terms  # the same as without the square
    assert not any("." in name and name[0] not in "sc" for factors in terms for name in factors)


def test_fields_that_decide_each_other() -> None:
    chain = GeneSpace(
        "chain",
        (
            Gene("a", ("on", "off"), ordered=False),
            Gene("b", (1, 2), when={"a": ("on",)}),
            Gene("c", (1, 2, 3), when={"b": (2,)}),
            Gene("n", (0, 2), when={"a": ("on",)}),
            Gene("x", (1, 2), per_layer="n"),
        ),
    )
    # off; on with b of 1, or of 2 with three c; n of 0, or of 2 with four layers' ways.
    assert chain.size == 1 + (1 + 3) * (1 + 4) == len(enumerate_all(chain))


def test_a_space_of_one_network_has_no_columns() -> None:
    one = GeneSpace("one", (Gene("width", (8,)), Gene("norm", ("rms",), ordered=False)))
    assert encode_features(one, enumerate_all(one)).shape == (1, 0) == (1, len(feature_names(one)))
    assert cost_terms(one) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[genes.a]\ninteger = [2, 1]", "line 1, genes.a: .*ascending"),
        ("[genes.a]\ninteger = [1, 1]", "different choices"),
        ("[genes.a]\ninteger = []", "line 2, genes.a.integer: found \\[\\]"),
        ("[genes.a]\ninteger = [1.5]", "integers"),
        ("[genes.a]\ninteger = [true]", "integers"),
        ("[genes.a]\nreal = [nan]", "finite"),
        ("[genes.a]\nreal = {from = 0.0, to = 1.0, step = 1e-9}", "at most 1000"),
        ("[genes.a]\nreal = {from = 0.0, to = 1.0, step = 0.0}", "positive step"),
        ("[genes.a]\ncategory = {from = 0, to = 1}", "texts"),
        ("[genes.a]\ncolour = [1]", "colour"),
        ("[genes.a]\ninteger = [1]\nreal = [1.0]", "one of integer, real, category"),
        ("[genes.a]\ninteger = [1]\nper_layer = 'b'", "should count"),
        ("[genes.a]\ninteger = [1]\nwhen = {b = [1]}", "earlier gene"),
        ("[genes.b]\ninteger=[1]\n[genes.a]\ninteger = [1]\nwhen = {b = [2]}", "earlier gene"),
        ("[genes.n]\ninteger=[9999]\n[genes.a]\ninteger=[1]\nper_layer='n'", "more than 5000"),
        (
            f"[genes.n]\ninteger=[{10**20}]\n[genes.a]\ninteger=[1]\nper_layer='n'",
            "more than 5000 genes",
        ),
        ("[space]\nname = 3\n[genes.a]\ninteger = [1]", "space.name"),
        ("[genes]", "no gene"),
        ("[model]\nx = 1", "model"),
    ],
)
def test_wrong_toml_is_named(text: str, words: str) -> None:
    with pytest.raises(SpaceFileError, match=words):
        parse_genes(text, "mine.toml")


@pytest.mark.parametrize("name", ["gpt/large", "../out", "a\\u0000b", "", ".hidden", "a" * 65])
def test_names_that_no_folder_can_begin_with_are_for_older_runs(name: str) -> None:
    text = f'[space]\nname = "{name}"\n[genes.a]\ninteger = [1]\n'
    with pytest.raises(SpaceFileError, match="mine.toml, line 2, space.name: .* 1 to 64 letters"):
        given_genes(text, "mine.toml")
    assert parse_genes(text, "space.toml").size == 1
    plain = text.replace(f'name = "{name}"', "")
    assert given_genes(plain, "my own.toml").name == "my own"


def test_an_empty_file_is_told_what_genes_look_like() -> None:
    with pytest.raises(SpaceFileError, match=r"mine.toml: .* empty; .* \[genes.width\]"):
        parse_genes("# nothing", "mine.toml")
    with pytest.raises(SpaceFileError, match=r"\[encoder\] and \[decoder\]"):
        parse_space("", "mine.toml")


def test_a_space_of_more_networks_than_can_be_written_down_is_refused() -> None:
    """Numbers of networks are written as JSON, which Python does up to 4,300 digits."""
    width = Gene("width", tuple(range(1, 11)), per_layer="layers")
    assert len(json.dumps(GeneSpace("deep", (Gene("layers", (1, 3999)), width)).size)) == 4000
    with pytest.raises(UsageError, match=r"the space deep holds more than 10\^4000 networks"):
        GeneSpace("deep", (Gene("layers", (1, 4001)), width))
    text = (
        "[genes.n]\ninteger = [4990]\n[genes.a]\ninteger = [1, 2, 3, 4, 5, 6, 7]\nper_layer = 'n'"
    )
    with pytest.raises(SpaceFileError, match="mine.toml: .* leave out genes, choices or layers"):
        parse_genes(text, "mine.toml")


@pytest.mark.parametrize(
    ("grid", "choices"),
    [
        ("from = 0.0, to = 0.3, step = 0.1", (0.0, 0.1, 0.2, 0.3)),
        ("from = -0.3, to = 0.3, step = 0.3", (-0.3, 0.0, 0.3)),
        ("from = 1000.1, to = 1000.4, step = 0.1", (1000.1, 1000.2, 1000.3, 1000.4)),
        ("from = 0, to = 2", (0.0, 1.0, 2.0)),
        ("from = 1e-7, to = 3e-7, step = 1e-7", (1e-7, 2e-7, 3e-7)),
        ("from = 1e-13, to = 4e-13, step = 1e-13", (1e-13, 2e-13, 3e-13, 4e-13)),
        ("from = 2.5e-12, to = 7.5e-12, step = 2.5e-12", (2.5e-12, 5e-12, 7.5e-12)),
        ("from = -3e-20, to = 3e-20, step = 3e-20", (-3e-20, 0.0, 3e-20)),
    ],
)
def test_grids_have_the_values_that_one_would_write(grid: str, choices: tuple[float, ...]) -> None:
    space = parse_genes(f"[genes.a]\nreal = {{ {grid} }}", "mine.toml")
    assert space.gene("a").choices == choices


def test_a_missing_file_is_named() -> None:
    with pytest.raises(SpaceFileError, match="no such file"):
        load_genes("nowhere.toml")


def _problem(space: GeneSpace) -> Problem:
    def costs(rows: Genotypes) -> Scores:
        columns = dict(zip(feature_names(space), encode_features(space, rows).T, strict=True))
        return Scores(
            (columns["width*sum.ratio"] + columns["layers"])[:, None], np.zeros(len(rows))
        )

    return Problem(space, costs, np.array([20.0, 500.0]))


def _quality(space: GeneSpace, rows: Genotypes) -> np.ndarray:
    columns = dict(zip(feature_names(space), encode_features(space, rows).T, strict=True))
    gain = np.log(columns["width"]) + columns["sum.ratio"] / 4 + columns["norm=rms"] / 5
    return 12 - gain - columns["count.kind=gated"] / 3


@pytest.mark.parametrize("name", ["rank-evolve", "ranknas", "random", "nsga2", "tpe"])
def test_searchers_search_it(tiny: GeneSpace, name: str) -> None:
    problem = _problem(tiny)
    start = sample_distinct(tiny, np.random.default_rng(3), 12)
    evolution = EvolutionSettings(population=12, generations=2)
    searcher: Searcher
    match name:
        case "rank-evolve":
            settings = RankEvolveSettings(budget=28, evolution=evolution)
            searcher = RankEvolve(problem, start, settings, 0)
        case "ranknas":
            searcher = OneShot(problem, start, 8, 0, evolution)
        case sampler:
            searcher = OptunaSearcher(problem, sampler, 20, 0)  # type: ignore[arg-type]
    for _ in search(searcher, lambda rows: _quality(tiny, rows)):
        pass
    assert searcher.done >= 16
    assert len(distinct(searcher.rows)) == searcher.done
    assert (tiny.canonical(searcher.rows) == searcher.rows).all()


def test_pruning_is_refused(tiny: GeneSpace) -> None:
    with pytest.raises(UsageError, match="without pruning"):
        RankEvolve(_problem(tiny), smallest(tiny), RankEvolveSettings(budget=8, prune=True), 0)


# -- networks as values, spaces as text -----------------------------------------------------------

RESTRICTED = """
[genes.layers]
integer = [0, 2]

[genes."odd name"]
category = ["x", "\\"y\\""]
per_layer = "layers"

[genes.eps]
real = [1e-6, 1.0, 2.5]

[genes.size]
integer = [1, 2, 3]
when = { layers = [2] }
"""


def test_a_space_is_the_same_after_it_was_written() -> None:
    space = parse_genes(RESTRICTED, "odd.toml")
    again = parse_genes(dump_genes(space), "other.toml")
    assert again == space and again.digest == space.digest
    assert again.digest != parse_genes(RESTRICTED.replace("2.5", "2.6"), "odd.toml").digest
    with pytest.raises(UsageError, match="texts without"):
        dump_genes(GeneSpace("one", (Gene("a", (2, 1), ordered=False),)))


def test_networks_are_values() -> None:
    space = parse_genes(RESTRICTED, "odd.toml")
    rows = enumerate_all(space)
    networks = space.decode(rows)
    assert len({network.id for network in networks}) == len(networks) == space.size
    one = networks[-1]
    assert one == GeneNetwork.from_json(one.to_json()) == one.to_json()
    assert {one: 1}[GeneNetwork(one.to_json())] == 1 and len(one.id) == 12
    changed = one.to_json()
    changed["eps"] = 7.0
    assert one != changed and "eps" in one.line
    for wrong in ([], {}, {"a": {}}, {"a": [[1]]}, {"a": float("nan")}, None, {"a": True}):
        with pytest.raises(ArchitectureError):
            GeneNetwork.from_json(wrong)


def test_a_restricted_space_has_the_same_columns() -> None:
    space = parse_genes(RESTRICTED, "odd.toml")
    smaller = space.restrict({"odd name.0": ["x"], "odd name.1": ["x"], "eps": [1.0, 2.5]})
    assert [slot.name for slot in smaller.slots] == [slot.name for slot in space.slots]
    assert smaller.parent_digest == space.digest and smaller.size < space.size
    rows = smaller.translate(enumerate_all(smaller), space)
    assert space.decode(rows) == smaller.decode(enumerate_all(smaller))
    for wrong in ({"odd name.0": ["x"]}, {"eps": []}, {"layers": [2]}):
        with pytest.raises(UsageError):
            space.restrict(wrong)


def test_any_text_is_a_name_in_toml() -> None:
    kinds = Gene("kind \U0001f600", ("a\x7f", "\u00e9\U0001f680"), ordered=False)
    space = GeneSpace("s\U0001f600", (kinds, Gene("width", (1, 2))), description='"\n\t\x7f')
    assert parse_genes(dump_genes(space), "mine.toml") == space


def test_of_very_many_categories_no_products_are_made() -> None:
    genes = [Gene(f"g{n}", tuple("abcdefgh"), ordered=False) for n in range(30)]
    space = GeneSpace("many", (*genes, Gene("width", (1, 2, 4))))
    rows = sample(space, np.random.default_rng(0), 5)
    assert encode_features(space, rows).shape == (5, 30 * 7 + 1)
    assert set(cost_terms(space)) == {*((n,) for n in range(30 * 7 + 1)), (210, 210)}
