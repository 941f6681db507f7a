"""`modeling.py` of any network: equal to ours, with the parts that it needs and no others."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from search_spaces.architecture import (
    ATTENTION_KINDS,
    SKIP,
    Architecture,
    AttentionKind,
    DecoderLayer,
    DecoderStack,
)
from search_spaces.attention import OPERATORS
from search_spaces.errors import DataError
from search_spaces.loading import model_table
from search_spaces.settings import LinearKernel, ModelSettings, OmniKernel, TokenInput
from search_spaces.tasks import TaskName
from supernet.blueprint import Blueprint
from supernet.export.contents import ReferenceOutputs
from supernet.export.standalone import as_module, kernels_of, modeling_source
from supernet.export.template.attention import KERNELS, Sizes, kernel_name
from supernet.export.weights import plain_weights
from tests.support.export_networks import (
    LENGTH,
    WORDS,
    random_blueprint,
    random_inputs,
    random_network,
)

NETWORKS = 60
CAUSAL_KINDS: tuple[AttentionKind, ...] = (
    "softmax",
    "window:64",
    "omni",
    *(f"linear:{kernel}" for kernel in get_args(LinearKernel)),
)


def module(blueprint: Blueprint) -> Any:
    return as_module(modeling_source(blueprint), Path("modeling.py"))


def built(blueprint: Blueprint) -> Any:
    return module(blueprint).Network(blueprint.to_json()).eval()


@torch.inference_mode()
def difference(seed: int, task: TaskName | None = None) -> float:
    """How far a random network's generated twin is from it, relative to its outputs."""
    blueprint = random_blueprint(seed, task)
    inputs = random_inputs(blueprint, seed)
    network, made = random_network(blueprint, seed), module(blueprint)
    twin = made.Network(blueprint.to_json())
    twin.load_state_dict(plain_weights(network))
    assert sum(p.numel() for p in twin.parameters()) == blueprint.params
    record = ReferenceOutputs(inputs, {})
    expected = record.named(network(*record.arguments))
    found = made.outputs(twin.eval(), inputs)
    size = max(float(one.abs().max()) for one in expected.values())
    return max(replace(record, outputs=expected).difference(one) for one in found) / size


@pytest.mark.parametrize("first", range(0, NETWORKS, 15))
def test_generated_networks_equal_ours(first: int) -> None:
    assert max(difference(seed) for seed in range(first, first + 15)) < 2e-5


def test_generated_embedders_equal_ours() -> None:
    assert max(difference(seed, "embedding") for seed in range(20)) < 2e-5


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_generated_networks_run_in_other_precisions(dtype: torch.dtype) -> None:
    for seed in range(12):
        blueprint, inputs = random_blueprint(seed), random_inputs(random_blueprint(seed), seed)
        made = module(blueprint)
        network = made.Network(blueprint.to_json())
        network.load_state_dict(plain_weights(random_network(blueprint, seed)))
        cast = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
        for logits in (one["logits"] for one in made.outputs(network.to(dtype).eval(), cast)):
            assert logits.dtype == dtype and bool(logits.isfinite().all())


@torch.inference_mode()
@pytest.mark.parametrize("kind", CAUSAL_KINDS)
def test_long_texts_are_written_in_bfloat16(kind: AttentionKind) -> None:
    """Token by token, behind 1,400 others: what is carried has lost no more than one step loses."""
    tokens = random_tokens(1500)
    settings = ModelSettings(
        TokenInput(WORDS), 1500, head_dim=8, positions="none", omni_kernel="performer"
    )
    blueprint = Blueprint("language_modelling", settings, one_layer(kind))
    full, low = (built(blueprint) for _ in range(2))
    full.load_state_dict(plain_weights(random_network(blueprint, 0, std=0.2)))
    low.load_state_dict(full.state_dict())
    expected = full(tokens)[:, 1400:]
    state, found = low.to(torch.bfloat16).start(), []
    for token in tokens.split(1, dim=1):
        logits, state = low.step(token, state)
        found.append(logits.float())
    error = (torch.cat(found[1400:], dim=1) - expected).abs().mean() / expected.abs().mean()
    assert error < 0.01


def one_layer(kind: AttentionKind) -> Architecture:
    return Architecture(decoder=DecoderStack(8, (DecoderLayer(kind, 2, 8),)))


def test_another_network_does_not_fit() -> None:
    made = built(random_blueprint(0))
    weights = plain_weights(random_network(random_blueprint(3), 3))
    with pytest.raises(RuntimeError, match="Error"):
        made.load_state_dict(weights)


@pytest.mark.parametrize("cross", [True, False])
def test_every_kernel_has_its_class(cross: bool) -> None:
    for kernel in (*get_args(LinearKernel), *get_args(OmniKernel)):
        model = {"linear_kernel": kernel, "omni_kernel": kernel, "relative_positions": 4}
        kinds = set(ATTENTION_KINDS) - {SKIP}
        assert {kernel_name(model, kind, cross) for kind in kinds} <= KERNELS.keys()
    assert KERNELS.keys() - {"full"} == OPERATORS.keys() - {SKIP}


GATED = {"decay", "decay_channel", "gated_delta"}


@pytest.mark.parametrize("kernel", sorted(GATED))
def test_what_gates_carry_keeps_no_prompt_alive(kernel: str) -> None:
    model = {
        **{"head_dim": 4, "qkv_bias": True, "output_bias": True, "qk_norm": False},
        **{"positions": "none", "rotary_theta": 1.0},
    }
    layer = KERNELS[kernel](model, Sizes(width=8, key_width=8, heads=2, kv_heads=2))
    with torch.no_grad():
        _, short = layer.causal(torch.randn(1, 1, 8), None, torch.arange(1))
        _, long = layer.causal(torch.randn(1, 90, 8), None, torch.arange(90))
    held = [[part.untyped_storage().nbytes() for part in state] for state in (short, long)]
    assert held[0] == held[1] == [part.nbytes for part in long]


def test_only_the_parts_in_use_are_there() -> None:
    for seed in range(30):
        blueprint = random_blueprint(seed)
        text, used = modeling_source(blueprint), kernels_of(blueprint)
        sums = {"performer", "cosformer", "norm", "elu", "hedgehog"}
        assert ("class LinearAttention" in text) == bool(used & sums)
        assert ("class WindowAttention" in text) == ("window" in used)
        assert ("class GatedAttention" in text) == bool(used & GATED)
        assert ("class BigBirdAttention" in text) == bool(used & {"linformer", "bigbird"})
        assert ("class Encoder" in text) == (blueprint.task != "language_modelling")
        assert ("class Decoder" in text) == (blueprint.task != "classification")


@pytest.mark.skipif(importlib.util.find_spec("ruff") is None, reason="ruff is not installed")
def test_the_text_is_clean(tmp_path: Path) -> None:
    for seed in range(40):
        text = modeling_source(random_blueprint(seed, "embedding" if seed > 35 else None))
        (tmp_path / f"network_{seed}.py").write_text(text)
    rules = "--isolated --line-length 100"
    ruff = [sys.executable, "-m", "ruff"]
    lint = [*ruff, *f"check {rules} --select E,W,F,I,B --output-format json .".split()]
    done = subprocess.run(lint, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert [(one["filename"], one["message"]) for one in json.loads(done.stdout)] == []
    layout = [*ruff, *f"format {rules} --check .".split()]
    assert subprocess.run(layout, cwd=tmp_path, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("words", [None, WORDS, WORDS - 10])
def test_words_that_the_tokenizer_does_not_know_are_never_written(words: int | None) -> None:
    blueprint = random_blueprint(2)  # a language model
    made = module(blueprint)
    network = made.Network({**blueprint.to_json(), "num_words": words}).eval()
    network.load_state_dict(plain_weights(random_network(blueprint, 2)))
    drawn = [made.continue_text(network, [1], 20, temperature=9.0, seed=seed) for seed in range(9)]
    highest = max(map(max, drawn))
    assert highest < (words or WORDS) and (highest < WORDS - 10) == (words == WORDS - 10)


@torch.inference_mode()
@pytest.mark.parametrize("more", [1, 30])
def test_the_beginning_of_a_long_text_is_remembered(more: int) -> None:
    """As our own network reads it, with the same words behind it."""
    blueprint = next(filter(memory, map(random_blueprint, range(2, 90, 3))))
    network, made = random_network(blueprint, 0), module(blueprint)
    twin = made.Network(blueprint.to_json()).eval()
    twin.load_state_dict(plain_weights(network))
    longest = blueprint.settings.max_length
    text = random_tokens(longest + more)
    state, new, expected = network.start(text[:, :more]), text[:, more:], []
    for _ in range(3):
        if state.position + new.shape[1] > longest:
            state = state.next_segment()
        logits, state = network.step(new, state)
        new = logits[:, -1:, 1:].argmax(dim=-1) + 1
        expected.append(int(new))
    assert made.continue_text(twin, text[0].tolist(), 3) == expected


def random_tokens(count: int) -> torch.Tensor:
    return torch.randint(1, WORDS, (1, count), generator=torch.Generator().manual_seed(0))


def test_a_network_without_a_memory_has_no_segments() -> None:
    state = built(next(b for b in map(random_blueprint, range(2, 90, 3)) if not memory(b))).start()
    with pytest.raises(ValueError, match="has no memory of earlier segments"):
        state.next_segment()


def memory(blueprint: Blueprint) -> int:
    assert blueprint.architecture.decoder is not None
    return blueprint.architecture.decoder.memory_length


# -- architecture.json ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(9))
def test_a_description_comes_back(seed: int) -> None:
    blueprint = random_blueprint(seed)
    assert Blueprint.from_json(json.loads(json.dumps(blueprint.to_json()))) == blueprint


def test_every_setting_is_named() -> None:
    blueprint = random_blueprint(2)
    known = {name for name, value in asdict(blueprint.settings).items() if value is not None}
    assert blueprint.to_json()["model"].keys() == known


def test_a_description_of_before_is_read() -> None:
    """From a time when there were fewer settings, which the files then named."""
    settings = ModelSettings(TokenInput(WORDS), LENGTH, head_dim=8)
    network = Architecture(decoder=DecoderStack(8, (DecoderLayer("softmax", 1, 8),)))
    blueprint = Blueprint("language_modelling", settings, network)
    written = blueprint.to_json()
    written["model"] = {name: written["model"][name] for name in model_table(settings)}
    assert "norm_kind" not in written["model"]
    assert Blueprint.from_json(written) == blueprint


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("format", 2, "no description of an exported network of format 1"),
        ("task", "painting", "task is 'painting'"),
        ("id", "0", "id is '0'"),
        ("params", 5, "params is 5"),
        ("architecture", {}, "describes no network"),
        ("model", {"max_length": -1}, "model.input: this key is missing"),
        ("model", [], "model: found .*, allowed is a table of keys"),
    ],
)
def test_a_wrong_description_is_refused(key: str, value: object, match: str) -> None:
    with pytest.raises(DataError, match=match):
        Blueprint.from_json({**random_blueprint(0).to_json(), key: value})


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 1}'])
def test_a_description_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "architecture.json").write_text(text)
    with pytest.raises(DataError):
        Blueprint.read(tmp_path)
