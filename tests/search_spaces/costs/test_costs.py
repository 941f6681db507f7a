"""The cost model against worked examples, and its three ways of asking against each other."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from search_spaces.architecture import (
    Architecture,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
)
from search_spaces.conventions import CONVENTIONS
from search_spaces.costs import Cost, cost, flops, params, totals
from search_spaces.costs.genotypes import genotype_totals
from search_spaces.costs.layers import kernel
from search_spaces.errors import ArchitectureError, UnknownNameError, UsageError
from search_spaces.loading import load_space
from search_spaces.settings import ImageInput, ModelSettings, TokenInput
from search_spaces.variation import sample

IMAGES = ModelSettings(
    ImageInput(8, 4, 3), max_length=5, num_classes=10, head_dim=8, class_token=True
)
TEXT = ModelSettings(TokenInput(50), max_length=20, num_classes=3, head_dim=4, class_token=True)
PAIRS = ModelSettings(TokenInput(100), max_length=40, qkv_dim=16, norm="post", positions="none")
SPACES = ("digits", "cifar10", "multi30k", "wikitext103", "wikitext103-xl")


def encoder(*kinds: str, dim: int = 12, heads: int = 2, ffn: int = 20) -> Architecture:
    layers = tuple(EncoderLayer(kind, heads, ffn) for kind in kinds)  # type: ignore[arg-type]
    return Architecture(EncoderStack(dim, layers))


def translator(encoder_dim: int = 12, decoder_dim: int = 12, connect: int = 1) -> Architecture:
    return Architecture(
        EncoderStack(encoder_dim, (EncoderLayer("softmax", 2, 20),) * 2),
        DecoderStack(decoder_dim, (DecoderLayer("softmax", 2, 20, "softmax", 2, connect),)),
    )


def part(found: Cost, name: str) -> tuple[int, int]:
    return next((p.params, p.flops) for p in found.parts if p.name == name)


def test_worked_example_of_an_image_classifier() -> None:
    found = cost(IMAGES, "classification", encoder("softmax"), "matmul")
    n, d, w, ffn = 5, 12, 16, 20
    assert part(found, "embedding") == (48 * d + d + d + 5 * d, 2 * 4 * 48 * d)
    assert part(found, "encoder.0.projections") == (4 * d * w + 3 * w + d + 2 * d, 8 * n * d * w)
    assert part(found, "encoder.0.attention") == (0, 4 * n * n * w)
    assert part(found, "encoder.0.ffn") == (2 * d * ffn + ffn + d + 2 * d, 4 * n * d * ffn)
    assert part(found, "encoder.norm") == (2 * d, 0)
    assert part(found, "output") == (d * 10 + 10, 2 * d * 10)
    assert len(found.parts) == 6


def test_worked_example_of_a_translator() -> None:
    found = cost(PAIRS, "translation", translator(12, 16, connect=2), "matmul", 7, 9)
    w, enc, dec = 16, 12, 16
    assert part(found, "embedding") == (100 * (enc + dec), 0)
    assert part(found, "decoder.0.cross_projections") == (
        2 * dec * w + 2 * enc * w + 3 * w + dec + 2 * dec,
        2 * (2 * 9 * dec * w + 2 * 2 * 7 * enc * w),
    )
    assert part(found, "decoder.0.cross_attention") == (0, 2 * 2 * 9 * 2 * 7 * w)
    assert part(found, "output") == (0, 2 * 9 * dec * 100)
    assert not [p for p in found.parts if p.name.endswith(".norm")]


def test_worked_example_of_a_language_model() -> None:
    network = Architecture(decoder=DecoderStack(12, (DecoderLayer("softmax", 2, 20),)))
    found = cost(PAIRS, "language_modelling", network, "matmul", 6)
    assert [p.name for p in found.parts][1:-1] == [
        f"decoder.0.{name}" for name in ("self_projections", "self_attention", "ffn")
    ]
    assert part(found, "embedding") == (100 * 12, 0)
    assert part(found, "output") == (0, 2 * 6 * 12 * 100)


def test_a_memory_adds_keys_and_nothing_else() -> None:
    settings = replace(PAIRS, relative_positions=3)
    layers = (DecoderLayer("softmax", 2, 20), DecoderLayer("softmax", 4, 20))
    plain, memory = (
        cost(settings, "language_modelling", Architecture(None, DecoderStack(12, layers, m)), c, 6)
        for m, c in ((0, "true"), (9, "true"))
    )
    n, w = 6, 16
    for number in (0, 1):
        name = f"decoder.{number}.self_attention"
        assert part(plain, name) == (7 * w, 2 * (3 * n * n * w + n * w))
        assert part(memory, name) == (7 * w, 2 * (3 * n * (n + 9) * w + n * w))
    assert memory.params == plain.params
    assert memory.flops - plain.flops == 2 * 2 * 3 * n * 9 * w


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", SPACES)
def test_parts_totals_and_genotypes_agree(name: str, convention: str) -> None:
    space = load_space(name)
    rows = sample(space, np.random.default_rng(3), 40)
    all_params, all_flops = genotype_totals(space, rows, convention)
    for network, row_params, row_flops in zip(
        space.decode(rows), all_params, all_flops, strict=True
    ):
        found = cost(space.model, space.task, network, convention)
        assert (found.params, found.flops) == (row_params, row_flops)
        assert (found.params, found.flops) == totals(space.model, space.task, network, convention)
        assert found.params == sum(p.params for p in found.parts)
        assert found.flops == sum(p.flops for p in found.parts)


def test_genotypes_of_a_pruned_space_and_of_no_rows() -> None:
    space = load_space("digits")
    pruned = space.restrict({"encoder.attention": ["omni"]})
    rows = sample(pruned, np.random.default_rng(0), 20)
    ours, root = (
        genotype_totals(pruned, rows),
        genotype_totals(space, pruned.translate(rows, space)),
    )
    assert np.array_equal(ours, root)
    assert [len(column) for column in genotype_totals(space, rows[:0])] == [0, 0]


def test_genotypes_take_lengths() -> None:
    space = load_space("multi30k")
    rows = sample(space, np.random.default_rng(0), 5)
    _, found = genotype_totals(space, rows, "true", 11, 13)
    expected = [flops(space.model, space.task, a, "true", 11, 13) for a in space.decode(rows)]
    assert found.tolist() == expected


def test_conventions_differ_where_they_say() -> None:
    def count(kind: str, convention: str) -> int:
        return flops(TEXT, "classification", encoder(kind), convention)

    assert count("softmax", "true") == count("softmax", "torchprofile")
    assert count("linear", "true") > count("linear", "torchprofile")
    assert count("softmax", "true") > count("softmax", "matmul")
    hat = cost(TEXT, "classification", encoder("linear"), "hat")
    assert part(hat, "encoder.0.attention")[1] == 2 * (3 + 2) * 20 * 8
    names = {p.name for p in cost(PAIRS, "translation", translator(), "hat").parts}
    assert not names & {"embedding", "output"}


def test_default_lengths() -> None:
    text = cost(TEXT, "classification", encoder("softmax"))
    assert (text.source_length, text.target_length) == (19, None)
    image = cost(IMAGES, "classification", encoder("softmax"))
    assert (image.source_length, image.target_length) == (4, None)
    pairs = cost(PAIRS, "translation", translator())
    assert (pairs.source_length, pairs.target_length) == (30, 30)
    short = cost(replace(PAIRS, max_length=10), "translation", translator())
    assert (short.source_length, short.target_length) == (10, 10)


def test_more_tokens_cost_more_operations_and_no_parameters() -> None:
    short = cost(TEXT, "classification", encoder("linear"), source_length=5)
    long = cost(TEXT, "classification", encoder("linear"), source_length=6)
    assert long.flops > short.flops
    assert long.params == short.params == params(TEXT, "classification", encoder("linear"))


def test_cosformer_breaks_even_with_softmax_near_twice_the_head_width() -> None:
    n = 2 * (IMAGES.head_dim or 0) + 2  # the 2 is the denominator
    softmax = kernel(IMAGES, "softmax", 2, n, n, 8).products
    assert kernel(IMAGES, "linear", 2, n, n, 8).linear_attention == softmax


def test_heads_are_free_where_the_width_is_fixed() -> None:
    one, many = (encoder("softmax", "softmax", heads=heads) for heads in (1, 8))
    fixed = replace(TEXT, head_dim=None, qkv_dim=16)
    assert totals(fixed, "classification", one) == totals(fixed, "classification", many)
    assert totals(TEXT, "classification", one) < totals(TEXT, "classification", many)


def test_omni_layer_of_one_state_is_an_ordinary_layer() -> None:
    full = replace(TEXT, omni_kernel="full", omni_span=1)
    omni, softmax = encoder("softmax", "omni"), encoder("softmax", "softmax")
    assert totals(full, "classification", omni) == totals(full, "classification", softmax)


def test_omni_layer_runs_whole_on_all_its_states() -> None:
    full = replace(TEXT, omni_kernel="full", omni_span=2)
    found = cost(full, "classification", encoder("softmax", "omni"), "matmul")
    assert part(found, "encoder.1.ffn")[1] == 2 * part(found, "encoder.0.ffn")[1]
    assert part(found, "encoder.1.attention")[1] == 4 * part(found, "encoder.0.attention")[1]
    assert part(found, "encoder.1.ffn")[0] == part(found, "encoder.0.ffn")[0]


@pytest.mark.parametrize(
    ("changes", "kind", "scaled"),
    [
        ({}, "softmax", 5),
        ({}, "linear", 3 * 5 + 2 * 7),
        ({"linear_kernel": "norm"}, "linear", 5),
        ({}, "omni", 5),
        ({"omni_kernel": "linformer"}, "omni", 5),
    ],
)
def test_scalings_of_every_kernel(changes: dict[str, str], kind: str, scaled: int) -> None:
    settings = replace(TEXT, **changes)  # type: ignore[arg-type]
    assert kernel(settings, kind, 2, 5, 7, 8).scalings == scaled * 8  # type: ignore[arg-type]


def test_linformer_prices_queries_and_keys() -> None:
    linformer = replace(TEXT, omni_kernel="linformer", linformer_rank=3)
    found = kernel(linformer, "omni", 2, 5, 14, 8, span=2)
    assert found.products == 2 * 3 * 14 * 8 + 2 * 5 * 3 * 8
    assert found.params == 3 * 20 * 2


def test_omni_decoder_layer_runs_whole_on_all_its_states() -> None:
    layers = tuple(DecoderLayer(kind, 2, 20, "softmax", 2, 1) for kind in ("softmax", "omni"))
    network = Architecture(translator().encoder, DecoderStack(12, layers))
    settings = replace(PAIRS, omni_kernel="bigbird", bigbird_block=1, omni_span=2)
    found = cost(settings, "translation", network, "matmul", 7, 9)
    for name in ("self_projections", "cross_attention", "ffn"):
        plain, omni = (part(found, f"decoder.{layer}.{name}") for layer in (0, 1))
        assert omni == (plain[0], 2 * plain[1])
    assert part(found, "decoder.1.self_attention")[1] == 2 * 2 * 16 * (2 * 9 + 7 * 8) * 2**2


def test_stacks_with_vocabularies_of_their_own() -> None:
    own = replace(PAIRS, input=TokenInput(100, target_vocab_size=70))
    found = cost(own, "translation", translator(12, 16), "matmul", 7, 9)
    assert part(found, "embedding") == (100 * 12 + 70 * 16, 0)
    assert part(found, "output") == (0, 2 * 9 * 16 * 70)


def test_bigbird_is_full_attention_until_it_is_sparse() -> None:
    def pairs(n: int) -> int:
        sparse = replace(TEXT, omni_kernel="bigbird", bigbird_block=4)
        return kernel(sparse, "omni", 1, n, n, 4).products // (2 * 4)

    assert pairs(32) == 32 * 32
    assert pairs(40) == (2 * 10 + 8 * 8) * 16 < 40 * 40
    assert pairs(37) == pairs(40)


def test_relative_keys_belong_to_softmax_self_attention() -> None:
    shaw = replace(PAIRS, relative_positions=3)
    plain, relative = (cost(s, "translation", translator(), "matmul") for s in (PAIRS, shaw))
    assert part(relative, "encoder.0.attention")[0] == 7 * 16
    assert part(relative, "encoder.0.attention")[1] * 2 == part(plain, "encoder.0.attention")[1] * 3
    name = "decoder.0.cross_attention"
    assert part(relative, name) == part(plain, name)


def test_shared_embeddings_are_one_table_as_wide_as_the_wider_stack() -> None:
    shared = replace(PAIRS, input=TokenInput(100, share_embeddings=True))
    found = cost(shared, "translation", translator(12, 16))
    assert part(found, "embedding") == (100 * 16, 0)


def test_json_form_is_json() -> None:
    data = json.loads(json.dumps(cost(TEXT, "classification", encoder("omni")).to_json()))
    assert data["flops"] == sum(p["flops"] for p in data["parts"])
    assert data["convention"] == "true"
    assert set(data["parts"][0]) == {"name", "params", "flops"}


def test_an_unknown_convention_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'torchprofile'.*hat"):
        cost(TEXT, "classification", encoder("softmax"), "torchprofiler")


def test_stacks_must_fit_the_task() -> None:
    with pytest.raises(ArchitectureError, match="encoder and a decoder"):
        totals(PAIRS, "translation", encoder("softmax"))
    with pytest.raises(ArchitectureError, match="nothing else"):
        totals(TEXT, "classification", translator())


@pytest.mark.parametrize(
    ("settings", "source", "target", "message"),
    [
        (TEXT, 0, None, "1 to 19"),
        (TEXT, 20, None, "1 to 19"),
        (TEXT, 5, 5, "one sequence only"),
        (IMAGES, 5, None, "every image has 4 patches"),
    ],
)
def test_impossible_lengths(
    settings: ModelSettings, source: int, target: int | None, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        totals(settings, "classification", encoder("softmax"), "true", source, target)


def test_costs_do_not_import_torch() -> None:
    code = "import sys, search_spaces.costs.genotypes; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
