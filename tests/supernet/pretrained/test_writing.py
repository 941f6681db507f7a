"""Networks that are written as their family has them, and loaded by transformers alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.architecture import Architecture
from search_spaces.errors import UsageError
from supernet.building import build_network
from supernet.extraction import StandAlone
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.writing import shorten, stock_problem, write_checkpoint
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import (
    CLASSES,
    FAMILIES,
    LINEAR,
    STRETCHED,
    change_config,
    mask_of,
    st_folder,
    tokens_of,
    write_model,
)

pytestmark = pytest.mark.export

TOLERANCE = 1e-5


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def smaller(found: Checkpoint, ffn_dim: int = 17, kinds: tuple[str, ...] = ()) -> Architecture:
    """Two layers of the network, with a narrower FFN and, where given, other kinds."""
    (name, values), layers = next(iter(found.architecture.to_json().items())), []
    key = "self_attention" if name == "decoder" else "attention"
    for number, layer in enumerate(values["layers"][:2]):
        kind = {key: kinds[number]} if kinds else {}
        layers.append({**layer, "ffn_dim": ffn_dim, **kind})
    return Architecture.from_json({name: {**values, "layers": layers}})


def built(found: Checkpoint, architecture: Architecture) -> StandAlone:
    """A network of the checkpoint's settings with weights of its own."""
    torch.manual_seed(3)
    network = build_network(found.settings, found.task, architecture)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network.eval()


@torch.inference_mode()
def outputs(model: Any, family: str) -> torch.Tensor:
    """Of a model of transformers."""
    if family == "vit":
        images = torch.randn(2, 2, 12, 12, generator=torch.Generator().manual_seed(5))
        return model(images).logits
    if family == "bert":
        real = mask_of("right")
        tokens = tokens_of(4).clamp(min=3).masked_fill(~real, 0)
        return model(tokens, attention_mask=real.long()).last_hidden_state[real]
    return model(tokens_of(4)).logits


@torch.inference_mode()
def own_outputs(network: StandAlone, family: str) -> torch.Tensor:
    """The same of ours."""
    if family == "vit":
        return network(torch.randn(2, 2, 12, 12, generator=torch.Generator().manual_seed(5)))
    if family == "bert":
        real = mask_of("right")
        tokens = tokens_of(4).clamp(min=3).masked_fill(~real, 0)
        return network(tokens)[0][real]
    return network(tokens_of(4))


def load(hub: Any, folder: Path, family: str) -> Any:
    """By the classes that users name, and without a weight missing or too much."""
    auto = {"bert": "AutoModel", "vit": "AutoModelForImageClassification"}
    cls = getattr(hub, auto.get(family, "AutoModelForCausalLM"))
    model, told = cls.from_pretrained(folder, output_loading_info=True)
    assert not told["unexpected_keys"] and not told["mismatched_keys"]
    assert all(name.startswith("pooler") for name in told["missing_keys"])
    return model.eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_read_is_written(hub: Any, family: str, tmp_path: Path) -> None:
    write_model(hub, tmp_path / "in", family)
    (tmp_path / "in" / "vocab.json").write_text(json.dumps({"a": 1}))
    found = read_checkpoint(tmp_path / "in")
    network = found.network()
    write_checkpoint(tmp_path / "out", network, family, found)
    model = load(hub, tmp_path / "out", family)
    assert (outputs(model, family) - own_outputs(network, family)).abs().max() < TOLERANCE
    assert type(model).__name__ == CLASSES[family][1]
    assert (tmp_path / "out" / "vocab.json").exists() == (family != "vit")
    again = read_checkpoint(tmp_path / "out")
    assert again.settings == found.settings and again.architecture == found.architecture
    before = hub.AutoConfig.from_pretrained(tmp_path / "in").to_dict()
    assert {k: v for k, v in model.config.to_dict().items() if k in before} == before | {
        key: value
        for key, value in model.config.to_dict().items()
        if key in ("_name_or_path", "max_window_layers", "dtype")
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_smaller_networks_are_written(hub: Any, family: str, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", family))
    network = built(found, smaller(found))
    write_checkpoint(tmp_path / "out", network, family, found)
    model = load(hub, tmp_path / "out", family)
    assert (outputs(model, family) - own_outputs(network, family)).abs().max() < TOLERANCE
    assert model.config.num_hidden_layers == 2


def test_a_llama_that_lists_its_layers_is_written_with_fewer(hub: Any, tmp_path: Path) -> None:
    place = write_model(hub, tmp_path / "in", "llama")
    change_config(place, layer_types=["full_attention"] * 3)
    found = read_checkpoint(place)
    write_checkpoint(tmp_path / "out", built(found, smaller(found)), "llama", found)
    assert load(hub, tmp_path / "out", "llama").config.num_hidden_layers == 2


@pytest.mark.parametrize("form", [{**LINEAR, "rope_theta": 50.0}, STRETCHED])
def test_waves_that_are_stretched_are_written(
    hub: Any, form: dict[str, Any], tmp_path: Path
) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", "llama", rope_parameters=form))
    network = built(found, smaller(found))
    for origin in (found, None):
        place = tmp_path / ("around" if origin else "alone")
        write_checkpoint(place, network, "llama", origin)
        model = load(hub, place, "llama")
        assert (outputs(model, "llama") - own_outputs(network, "llama")).abs().max() < TOLERANCE
        assert read_checkpoint(place).settings == found.settings
        # Older transformers read nothing but this.
        assert json.loads((place / "config.json").read_text())["rope_scaling"] == form


@pytest.mark.parametrize("family", FAMILIES)
def test_networks_without_an_origin_are_written(hub: Any, family: str, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", family))
    network = built(found, smaller(found))
    assert stock_problem(family, found.task, found.settings, network.architecture) is None
    write_checkpoint(tmp_path / "out", network, family)
    model = load(hub, tmp_path / "out", family)
    assert (outputs(model, family) - own_outputs(network, family)).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mistral"])
def test_windows_are_written(hub: Any, family: str, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", family))
    kinds = ("window:3", "window:3") if family == "mistral" else ("window:3", "softmax")
    network = built(found, smaller(found, kinds=kinds))
    write_checkpoint(tmp_path / "out", network, family, found)
    model = load(hub, tmp_path / "out", family)
    assert (outputs(model, family) - own_outputs(network, family)).abs().max() < TOLERANCE
    softmax = built(found, smaller(found, kinds=("softmax", "softmax")))
    write_checkpoint(tmp_path / "none", softmax, family, found)
    model = load(hub, tmp_path / "none", family)
    assert (outputs(model, family) - own_outputs(softmax, family)).abs().max() < TOLERANCE


@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_sentence_transformers_come_out_as_such(hub: Any, mode: str, tmp_path: Path) -> None:
    write_model(hub, tmp_path / "in", "bert")
    found = read_checkpoint(st_folder(tmp_path / "in", mode))
    network = built(found, smaller(found))
    write_checkpoint(tmp_path / "out", network, "bert", found)
    names = ["1_Pooling", "config.json", "model.safetensors", "modules.json"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        *names,
        "sentence_bert_config.json",
    ]
    again = read_checkpoint(tmp_path / "out")
    assert again.sentence == found.sentence and again.settings == found.settings
    with torch.inference_mode():
        tokens = tokens_of(4)
        assert torch.equal(again.network()(tokens)[1], network(tokens)[1])


@pytest.mark.parametrize(
    ("family", "kinds", "words"),
    [
        ("llama", ("window:3", "softmax"), "softmax only"),
        ("mistral", ("window:3", "softmax"), "one kind of attention"),
        ("qwen2", ("window:3", "window:4"), "windows of one size"),
        ("qwen3", ("linear:elu", "softmax"), "softmax and windows only, not 'linear:elu'"),
        ("bert", ("softmax", "linear:hedgehog"), "softmax only, not 'linear:hedgehog'"),
        ("vit", ("window:2", "softmax"), "softmax only"),
        ("gpt2", ("softmax", "linear:elu"), "softmax only"),
    ],
)
def test_kinds_that_a_family_lacks(
    hub: Any, family: str, kinds: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", family))
    network = built(found, smaller(found, kinds=kinds))
    with pytest.raises(UsageError, match=words):
        write_checkpoint(tmp_path / "out", network, family, found)
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_sizes_that_a_family_lacks(hub: Any, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path, "bert"))

    def problem(key: str, values: list[int]) -> str | None:
        stack = found.architecture.to_json()["encoder"]
        layers = [{**one, key: v} for one, v in zip(stack["layers"], values, strict=True)]
        changed = Architecture.from_json({"encoder": {**stack, "layers": layers}})
        return stock_problem("bert", "embedding", found.settings, changed, found)

    assert problem("num_heads", [4, 4, 4]) is None
    assert "all heads together" in (problem("num_heads", [2, 2, 2]) or "")
    assert "differ in num_heads (2, 4)" in (problem("num_heads", [2, 4, 4]) or "")
    assert "differ in ffn_dim (8, 9)" in (problem("ffn_dim", [8, 9, 9]) or "")
    assert "as many heads of keys" in (problem("num_kv_heads", [2, 2, 2]) or "")
    odd = problem("attention", ["softmax", "skip", "softmax"])
    assert odd is not None and "layers without attention" in odd


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"norm": "post"}, "norm"),
        ({"rotary_share": 0.5}, "rotary_share"),
        ({"scale_embeddings": True}, "scale_embeddings"),
        ({"qk_norm": True}, "qk_norm"),
        ({"output_bias": True}, "output_bias"),
    ],
)
def test_settings_that_a_family_lacks(
    hub: Any, change: dict[str, Any], word: str, tmp_path: Path
) -> None:
    found = read_checkpoint(write_model(hub, tmp_path, "llama"))
    settings = replace(found.settings, **change)
    problem = stock_problem("llama", found.task, settings, found.architecture, found)
    assert problem is not None and word in problem
    # What no network of softmax reads makes no difference.
    settings = replace(found.settings, linear_kernel="elu", window=3, omni_span=2)
    assert stock_problem("llama", found.task, settings, found.architecture, found) is None


def test_a_folder_that_holds_something_is_left_alone(hub: Any, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "in", "llama"))
    before = sorted((tmp_path / "in").iterdir())
    with pytest.raises(UsageError, match="holds something already"):
        write_checkpoint(tmp_path / "in", found.network(), "llama", found)
    assert sorted((tmp_path / "in").iterdir()) == before
    with pytest.raises(UsageError, match="of the family llama, not qwen2"):
        write_checkpoint(tmp_path / "out", found.network(), "qwen2", found)


def test_what_is_copied_asks_for_no_longer_texts_than_there_are_positions(tmp_path: Path) -> None:
    files = {
        "sentence_bert_config.json": "max_seq_length",
        "tokenizer_config.json": "model_max_length",
    }
    for name, key in files.items():
        (tmp_path / name).write_text(json.dumps({key: 256, "other": 300}))
    shorten(tmp_path, 128)
    for name, key in files.items():
        assert json.loads((tmp_path / name).read_text()) == {key: 128, "other": 300}
    shorten(tmp_path, 200)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 128


def test_classes_are_named_as_the_data_name_them(hub: Any, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "a", "vit"))
    names = tuple(f"kind {number}" for number in range(len(found.labels)))
    write_checkpoint(tmp_path / "b", found.network(), "vit", found, names)
    again = read_checkpoint(tmp_path / "b")
    assert again.labels == names and again.labels != found.labels
    assert json.loads((tmp_path / "b/config.json").read_text())["label2id"]["kind 2"] == 2
