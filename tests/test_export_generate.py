"""Generated `modeling.py`: of any network, equal to ours, and nothing in it that is not needed."""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from search_spaces.architecture import ATTENTION_KINDS
from search_spaces.errors import DataError
from search_spaces.settings import LinearKernel, OmniKernel
from supernet.export.base import Reading, Record
from supernet.export.blueprint import Blueprint
from supernet.export.generate import as_module, modeling_source
from supernet.export.huggingface import tokenizer_properties
from supernet.export.layer_source import CLASSES
from supernet.export.properties import kernel_of, properties
from supernet.export.template import sizes
from supernet.export.weights import plain_weights
from tests.export_networks import WORDS, random_blueprint, random_inputs, random_network

NETWORKS = 60


def module(blueprint: Blueprint, **more: Any) -> Any:
    return as_module(modeling_source(blueprint, **more), Path("modeling.py"))


@torch.inference_mode()
def difference(seed: int) -> float:
    """How far a random network's generated twin is from it, relative to its outputs."""
    blueprint, inputs = random_blueprint(seed), random_inputs(random_blueprint(seed), seed)
    network, made = random_network(blueprint, seed), module(blueprint)
    twin = made.Network()
    twin.load_state_dict(plain_weights(network))
    assert sum(p.numel() for p in twin.parameters()) == blueprint.params == made.PARAMETERS
    record = Record(inputs, {})
    expected = network(*record.arguments)
    found = made.outputs(twin.eval(), inputs)
    return max(float((one - expected).abs().max()) for one in found) / float(expected.abs().max())


@pytest.mark.parametrize("first", range(0, NETWORKS, 15))
def test_generated_networks_equal_ours(first: int) -> None:
    assert max(difference(seed) for seed in range(first, first + 15)) < 2e-5


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_generated_networks_run_in_other_precisions(dtype: torch.dtype) -> None:
    for seed in range(12):
        blueprint, inputs = random_blueprint(seed), random_inputs(random_blueprint(seed), seed)
        made = module(blueprint)
        network = made.Network()
        network.load_state_dict(plain_weights(random_network(blueprint, seed)))
        cast = {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}
        for logits in made.outputs(network.to(dtype).eval(), cast):
            assert logits.dtype == dtype and bool(logits.isfinite().all())


def test_another_network_does_not_fit() -> None:
    made = module(random_blueprint(0)).Network()
    weights = plain_weights(random_network(random_blueprint(3), 3))
    with pytest.raises(RuntimeError, match="Error"):
        made.load_state_dict(weights)


def test_every_property_of_the_parts_is_decided() -> None:
    asked = {name for name, value in vars(sizes).items() if value is True}
    known = properties(random_blueprint(0), 5, "model.safetensors")
    assert asked <= {*known, *tokenizer_properties(Reading({"kind": "bytes"}))}


def test_every_kernel_has_its_class() -> None:
    names = set()
    for kernel in (*get_args(LinearKernel), *get_args(OmniKernel)):
        both = {"linear_kernel": kernel, "omni_kernel": kernel}
        settings = replace(random_blueprint(0).settings, **both)
        names |= {kernel_of(settings, kind, "encoder") for kind in ATTENTION_KINDS}
    assert names - {"full"} <= CLASSES.keys()  # full is softmax over all states


def test_no_property_is_left_in_the_text() -> None:
    for seed in range(30):
        words = set(modeling_source(random_blueprint(seed)).split())
        assert not words & {"PADDING", "PRE_NORM", "OMNI", "JOINED", "MEMORY", "TRANSLATOR"}


@pytest.mark.skipif(shutil.which("ruff") is None, reason="ruff is not installed")
def test_the_text_is_clean(tmp_path: Path) -> None:
    for seed in range(40):
        text = modeling_source(random_blueprint(seed), 20 if seed % 2 else None)
        (tmp_path / f"network_{seed}.py").write_text(text)
    rules = "--isolated --line-length 100"
    lint = f"ruff check {rules} --select E,W,F,I,B --output-format json ."
    done = subprocess.run(lint.split(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert [(one["filename"], one["message"]) for one in json.loads(done.stdout)] == []
    layout = f"ruff format {rules} --check .".split()
    assert subprocess.run(layout, cwd=tmp_path, capture_output=True, check=False).returncode == 0


def test_only_the_kinds_in_use_are_there() -> None:
    text = modeling_source(random_blueprint(2))  # a language model
    assert "class Encoder" not in text and "PAD" in text


@pytest.mark.parametrize("words", [None, WORDS, WORDS - 10])
def test_words_that_the_tokenizer_does_not_know_are_never_written(words: int | None) -> None:
    text = modeling_source(random_blueprint(1), words)
    assert ("NUM_WORDS" in text) == (words == WORDS - 10)


# -- architecture.json ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(9))
def test_a_description_comes_back(seed: int) -> None:
    blueprint = random_blueprint(seed)
    assert Blueprint.from_json(json.loads(json.dumps(blueprint.to_json()))) == blueprint


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("format", 2, "no description of an exported network of format 1"),
        ("task", "painting", "task is 'painting'"),
        ("id", "0", "id is '0'"),
        ("params", 5, "params is 5"),
        ("architecture", {}, "describes no network"),
        ("model", {"max_length": -1}, "describes no network"),
        ("model", [], "describes no network"),
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
