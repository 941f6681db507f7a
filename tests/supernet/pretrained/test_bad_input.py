"""Folders that are not what they should be: one sentence each, and nothing left behind."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.errors import DataError, NasError, UsageError
from supernet.pretrained.checkpoint import checkpoint_digest, read_checkpoint
from supernet.pretrained.folder_files import is_checkpoint_file, unread_weights
from supernet.pretrained.padding import padding_of
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import (
    POSITIONS,
    VOCABULARY,
    change_config,
    random_model,
    st_folder,
    write_model,
)

pytestmark = pytest.mark.export


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def originals(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of each kind that the tests damage copies of."""
    place = tmp_path_factory.mktemp("originals")
    for family in ("bert", "llama", "gpt2", "vit", "qwen3", "mistral"):
        write_model(hub, place / family, family)
    random_model(hub, "llama").save_pretrained(place / "shards", max_shard_size="5KB")
    return place


@pytest.fixture
def folder(originals: Path, tmp_path: Path) -> Any:
    """Gives a copy of an original."""

    def copied(name: str) -> Path:
        return Path(shutil.copytree(originals / name, tmp_path / name))

    return copied


def refused(folder: Path, weights: bool = False) -> str:
    """The sentence with which a folder is refused, which changes nothing in it."""
    before = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    with pytest.raises(NasError) as caught:
        found = read_checkpoint(folder)
        if weights:
            found.network()
    assert isinstance(caught.value, DataError) and caught.value.exit_code == 2
    after = {path: path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}
    assert before == after
    text = str(caught.value)
    assert "\n" not in text and str(folder) in text
    return text


def rewritten(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Set tensors of the weights (``.`` written ``__``); None takes one out."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    changed = load_file(file) | {name.replace("__", "."): t for name, t in tensors.items()}
    save_file({name: t for name, t in changed.items() if t is not None}, file)


# -- weights ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 5, 100, -1, -1000])
def test_weights_that_are_cut_off(folder: Any, length: int) -> None:
    place = folder("llama")
    file = place / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "no whole safetensors file" in refused(place)


def test_a_shard_that_is_cut_off(folder: Any) -> None:
    place = folder("shards")
    file = sorted(place.glob("*.safetensors"))[1]
    file.write_bytes(file.read_bytes()[:-7])
    assert f"{file.name} is no whole safetensors file" in refused(place)


def test_a_shard_that_is_missing(folder: Any) -> None:
    place = folder("shards")
    file = sorted(place.glob("*.safetensors"))[1]
    file.unlink()
    assert f"{file.name} is missing: the index names it" in refused(place)


def test_a_shard_without_one_of_its_tensors(folder: Any) -> None:
    place = folder("shards")
    index = place / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"]["model.norm.bias"] = values["weight_map"]["model.norm.weight"]
    index.write_text(json.dumps(values))
    assert "has no tensor model.norm.bias" in refused(place)


@pytest.mark.parametrize("name", ["../llama/model.safetensors", "/etc/passwd", "a.bin", 3])
def test_an_index_that_leads_elsewhere(folder: Any, name: Any) -> None:
    folder("llama")
    place = folder("shards")
    index = place / "model.safetensors.index.json"
    values = json.loads(index.read_text())
    values["weight_map"]["model.norm.weight"] = name
    index.write_text(json.dumps(values))
    assert "shards are safetensors files beside it" in refused(place)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"weight_map": 3}', '{"weight_map": {}}'])
def test_an_index_that_is_none(folder: Any, text: str) -> None:
    place = folder("shards")
    (place / "model.safetensors.index.json").write_text(text)
    refused(place)


def test_a_tensor_that_is_missing(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, model__layers__1__mlp__up_proj__weight=None)
    assert "has no tensor model.layers.1.mlp.up_proj.weight" in refused(place)


def test_an_output_layer_that_is_missing(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, lm_head__weight=None)
    assert "has no tensor lm_head.weight" in refused(place)


def test_a_tensor_too_much(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, model__layers__1__self_attn__k_norm__weight=torch.ones(10))
    assert "k_norm.weight, which is not known of the family llama" in refused(place)


def test_a_tensor_of_another_shape(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, model__norm__weight=torch.ones(23))
    assert "model.norm.weight is (23,), but by config.json it is (24,)" in refused(place)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_no_numbers(folder: Any, value: float) -> None:
    place = folder("llama")
    weight = torch.ones(24)
    weight[7] = value
    rewritten(place, model__norm__weight=weight)
    assert "model.norm.weight holds NaN or infinity" in refused(place, weights=True)
    with pytest.raises(DataError, match=r"model\.norm\.weight holds NaN or infinity"):
        read_checkpoint(place).check_weights()


@pytest.mark.parametrize("place", [0, 9_999])
def test_weights_are_looked_through_piece_by_piece(
    folder: Any, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr("supernet.pretrained.tensors.PART", 7)
    llama = folder("llama")
    found = read_checkpoint(llama)
    found.check_weights()
    weight = torch.ones(found.tensors["lm_head.weight"].shape)
    weight.view(-1)[min(place, weight.numel() - 1)] = float("nan")
    rewritten(llama, lm_head__weight=weight)
    with pytest.raises(DataError, match=r"lm_head\.weight holds NaN"):
        read_checkpoint(llama).check_weights()


def test_large_weights_are_numbers(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, model__norm__weight=torch.full((24,), 3e38))
    read_checkpoint(place).check_weights()
    assert float(read_checkpoint(place).weights()["decoder.final_norm.weight"][0]) == pytest.approx(
        3e38
    )


def test_weights_that_are_quantised(folder: Any) -> None:
    place = folder("llama")
    rewritten(place, model__norm__weight=torch.ones(24, dtype=torch.int8))
    assert "is of type I8" in refused(place)


def test_a_tied_output_that_differs(folder: Any) -> None:
    place = folder("llama")
    change_config(place, tie_word_embeddings=True)
    told = "says tie_word_embeddings, but its lm_head.weight differs"
    assert told in refused(place, True)
    found = read_checkpoint(place)
    for look in (found.check_output, found.check_weights):
        with pytest.raises(DataError, match=told):
            look()
    same = torch.ones(found.tensors["lm_head.weight"].shape)
    rewritten(place, model__embed_tokens__weight=same, lm_head__weight=same.half())
    for look in (found.check_output, found.check_weights, found.network):
        look()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-2.bin", "w.pt"])
def test_a_pickle_beside_the_settings(folder: Any, name: str, tmp_path: Path) -> None:
    place = folder("llama")
    (place / "model.safetensors").unlink()
    (place / name).write_bytes(_harmful(tmp_path))
    assert f"{name}, which was not opened, for a pickle can run code" in refused(place)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("form", ["pickle", "zip"])
def test_a_pickle_under_another_name(folder: Any, form: str, tmp_path: Path) -> None:
    place = folder("llama")
    if form == "zip":
        torch.save({"a": torch.ones(2)}, place / "model.safetensors")
    else:
        (place / "model.safetensors").write_bytes(_harmful(tmp_path))
    assert "it was not opened" in refused(place)
    assert not (tmp_path / "ran").exists()


def test_a_head_whose_length_looks_like_a_pickle_is_read(folder: Any) -> None:
    """0x0280 bytes, 0x0380 …: as likely as any other length of a head."""
    place = folder("llama")
    file = place / "model.safetensors"
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    wanted = (length // 256 + 1) * 256 + 0x80
    wanted += next(
        n for n in range(0, 1 << 16, 256) if (wanted + n) % (1 << 16) >> 8 in range(2, 6)
    )
    head = content[8 : 8 + length].ljust(wanted)
    file.write_bytes(struct.pack("<Q", wanted) + head + content[8 + length :])
    assert file.read_bytes()[0] == 0x80 and file.read_bytes()[1] in range(2, 6)
    assert read_checkpoint(place).network() is not None


def test_a_pickle_beside_safetensors_is_not_looked_at(folder: Any, tmp_path: Path) -> None:
    place = folder("llama")
    (place / "pytorch_model.bin").write_bytes(_harmful(tmp_path))
    read_checkpoint(place).network()
    assert not (tmp_path / "ran").exists()


class _Harmful:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return (Path.touch, (self.place,))


def _harmful(place: Path) -> bytes:
    return pickle.dumps(_Harmful(place / "ran"))


def test_a_head_that_lies_about_its_length(folder: Any) -> None:
    place = folder("llama")
    (place / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    assert "no whole safetensors file" in refused(place)


def test_a_folder_without_weights(folder: Any) -> None:
    place = folder("llama")
    (place / "model.safetensors").unlink()
    assert "holds no weights" in refused(place)


# -- settings --------------------------------------------------------------------------------------


def test_weights_that_nothing_reads_but_the_library(folder: Any) -> None:
    place = folder("bert")
    rewritten(place, pooler__dense__weight=torch.full((24, 24), float("nan")))
    with pytest.raises(DataError, match=r"pooler\.dense\.weight holds NaN or infinity"):
        read_checkpoint(place).check_weights()


def test_an_export_of_another_form(folder: Any) -> None:
    place = folder("llama")
    (place / "config.json").unlink()
    (place / "architecture.json").write_text("{}")
    assert "export the network again with --format huggingface" in refused(place)


def test_a_tokenizer_whose_tokens_are_no_text(folder: Any) -> None:
    """Which is read for its padding before anything else looks at it."""
    place = folder("bert")
    for values in (
        {"added_tokens": [{"id": 1, "content": ["x"]}, {"id": 2}, 3]},
        {"model": {"type": "Unigram", "vocab": [[["a"], 0], [], 3]}},
    ):
        (place / "tokenizer.json").write_text(json.dumps(values))
        assert padding_of(place) == 0
    (place / "tokenizer_config.json").write_text(json.dumps({"pad_token": "\ud800"}))
    assert "tokenizer_config.json is no JSON" in refused(place)


def test_other_weights_beside_the_whole_network_are_not_uploaded() -> None:
    names = ["config.json", "model.safetensors", "consolidated.safetensors"]
    assert unread_weights(names) == names[2:]
    assert unread_weights(["model-00001-of-00002.safetensors", "a.safetensors"]) == []


def test_no_folder(tmp_path: Path) -> None:
    for place in (tmp_path / "none", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        assert "is no folder" in refused(place)
    (tmp_path / "empty").mkdir()
    assert "config.json is missing" in refused(tmp_path / "empty")


@pytest.mark.parametrize("text", ["", "{", "[1]", "null", '"a"', "[" * 50_000, "\ud800"])
def test_settings_that_are_none(folder: Any, text: str) -> None:
    place = folder("llama")
    (place / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(place)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("auto_map", {"AutoModel": "modeling.Model"}),
        ("trust_remote_code", True),
        ("custom_pipelines", {"a": {}}),
    ],
)
def test_settings_that_ask_for_code(folder: Any, key: str, value: Any) -> None:
    place = folder("llama")
    change_config(place, **{key: value})
    assert f"asks for code of its own ({key})" in refused(place)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_tokenizer_that_asks_for_code(folder: Any, name: str) -> None:
    place = folder("llama")
    (place / name).write_text(json.dumps({"auto_map": {"AutoTokenizer": ["a.B", None]}}))
    assert f"{name} asks for code of its own (auto_map)" in refused(place)


def test_a_family_that_is_not_known(folder: Any) -> None:
    place = folder("llama")
    change_config(place, model_type="mamba")
    text = refused(place)
    assert "model_type is 'mamba'" in text and "bert, gpt2, llama" in text
    change_config(place, model_type=["llama"])
    assert "model_type is ['llama']" in refused(place)


@pytest.mark.parametrize(
    ("family", "classes"),
    [
        ("bert", ["BertForSequenceClassification"]),
        ("llama", ["LlamaForSequenceClassification"]),
        ("vit", ["ViTModel"]),
        ("gpt2", "GPT2LMHeadModel"),
        ("gpt2", 1),
        ("gpt2", [{}]),
    ],
)
def test_classes_with_other_outputs(folder: Any, family: str, classes: Any) -> None:
    place = folder(family)
    change_config(place, architectures=classes)
    assert f"of the family {family} known are" in refused(place)


@pytest.mark.parametrize(
    ("family", "change", "words"),
    [
        (
            "llama",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "scaling.type is 'dynamic'",
        ),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ("llama", {"rope_parameters": {"rope_type": ["linear"]}}, "rope_type is ['linear']"),
        ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "factor is missing"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor is '2'"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "factor": 0.5}},
            "rotary_factor stretches wave lengths",
        ),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, "rope_theta is -1"),
        (
            "llama",
            {"rope_parameters": {"rope_theta": 0.5}},
            "rotary_theta is a finite number above 1",
        ),
        ("llama", {"rope_parameters": {"mystery": 1}}, "rope_parameters.mystery is 1; what is"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("llama", {"hidden_act": "xielu"}, "hidden_act is 'xielu'"),
        ("llama", {"head_dim": 9}, "head_dim is 9"),
        ("llama", {"num_key_value_heads": 3}, "does not divide"),
        ("llama", {"hidden_size": "24"}, "hidden_size is '24'"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ("llama", {"num_hidden_layers": 999}, "too few for 999 layers"),
        ("llama", {"num_hidden_layers": 4}, "has no tensor model.layers.3"),
        ("llama", {"num_hidden_layers": 2}, "model.layers.2"),
        ("llama", {"intermediate_size": 1 << 24}, "gate_proj.weight is"),
        (
            "llama",
            {name: 1 << 24 for name in ("hidden_size", "num_attention_heads", "head_dim")},
            "a network of these sizes would be too large",
        ),
        ("llama", {"attention_bias": "yes"}, "attention_bias is 'yes'"),
        ("llama", {"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ("llama", {"quantization_config": {"bits": 4}}, "quantization_config is"),
        ("llama", {"logit_scale": 2.0}, "the setting 'logit_scale' (2.0)"),
        ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder is true"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved is true"),
        ("mistral", {"attention_bias": True}, "attention_bias is true"),
        ("bert", {"pruned_heads": {"0": [1]}}, "what is known here is {} or []"),
        ("qwen3", {"num_key_value_heads": None}, "num_kv_heads is 32, which does not divide"),
        ("mistral", {"num_key_value_heads": None}, "num_kv_heads is 8, which does not divide"),
        ("llama", {"rms_norm_eps": 2.0}, "norm_eps is between 0 and 1"),
        ("llama", {"rms_norm_eps": 10**309}, "what is known here is a positive number up to"),
        ("mistral", {"sliding_window": -1}, "sliding_window is -1"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("qwen3", {"layer_types": ["chunked_attention"] * 3}, "layer_types"),
        ("qwen3", {"layer_types": ["full_attention"] * 2}, "layer_types"),
        ("qwen3", {"layer_types": [[], [], []]}, "layer_types"),
        ("qwen3", {"use_sliding_window": False}, "use_sliding_window is false"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is false"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention is true"),
        ("gpt2", {"n_head": 5}, "n_head is 5"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ("bert", {"is_decoder": True}, "is_decoder is true"),
        ("bert", {"hidden_size": 10**30}, "hidden_size"),
        ("bert", {"layer_norm_eps": 0}, "layer_norm_eps is 0"),
        ("vit", {"image_size": [12, 16]}, "image_size is [12, 16]"),
        ("vit", {"image_size": 13}, "a multiple of patch_size"),
        ("vit", {"id2label": {"0": "a"}}, "classifier.weight is (5, 24)"),
    ],
)
def test_settings_that_are_not_known(
    folder: Any, family: str, change: dict[str, Any], words: str
) -> None:
    place = folder(family)
    change_config(place, **change)
    assert words in refused(place)


def test_settings_without_effect_are_passed_over(folder: Any) -> None:
    place = folder("llama")
    before = read_checkpoint(place)
    change_config(place, use_cache=False, attention_dropout=0.5, pretraining_tp=1, temperature=0.6)
    change_config(place, is_llama_config=True, rope_interleaved=False, use_mrope=False)
    change_config(place, _num_labels=1, directionality="bidi", unsloth_fixed=True)
    change_config(place, **{"transformers.js_config": {"kv_cache_dtype": {"fp16": "float16"}}})
    assert read_checkpoint(place).settings == before.settings


def test_of_two_tables_of_rotary_positions_the_older_one_is_read(folder: Any) -> None:
    """As transformers does, unless it is empty."""
    place = folder("llama")
    newer = {"rope_type": "default", "rope_theta": 333.0}
    for older, theta in (({"rope_type": "default"}, 10_000.0), ({}, 333.0)):
        change_config(place, rope_parameters=newer, rope_scaling=older, rope_theta=None)
        assert read_checkpoint(place).settings.rotary_theta == theta


def test_a_network_that_was_saved_without_its_output_layer(folder: Any) -> None:
    place = folder("gpt2")
    change_config(place, tie_word_embeddings=False)
    assert "it was saved without its output layer; GPT2LMHeadModel has it" in refused(place)


def test_further_templates_belong_to_a_tokenizer(folder: Any) -> None:
    place = folder("llama")
    digest = checkpoint_digest(read_checkpoint(place))
    (place / "additional_chat_templates").mkdir()
    for name in ("tool_use.jinja", "..jinja", "x.py"):
        (place / "additional_chat_templates" / name).write_text("{{ messages }}")
    found = read_checkpoint(place)
    assert found.tokenizer_files[-1] == "additional_chat_templates/tool_use.jinja"
    assert checkpoint_digest(found) == digest
    assert is_checkpoint_file("additional_chat_templates/tool_use.jinja")
    assert not is_checkpoint_file("additional_chat_templates/..jinja")


# -- tokenizers and texts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", json.dumps({"model": {"vocab": {"a": VOCABULARY}}})),
        ("tokenizer.json", json.dumps({"model": {"vocab": [["a", 0.0]] * (VOCABULARY + 1)}})),
        (
            "tokenizer.json",
            json.dumps({"model": {"vocab": {"a": 1}}, "added_tokens": [{"id": VOCABULARY}]}),
        ),
        ("vocab.json", json.dumps({"a": 0, "b": VOCABULARY})),
        ("added_tokens.json", json.dumps({"<x>": VOCABULARY})),
        ("vocab.txt", "a\n" * (VOCABULARY + 1)),
    ],
)
def test_a_tokenizer_of_another_network(folder: Any, name: str, text: str) -> None:
    place = folder("gpt2")
    (place / name).write_text(text)
    assert f"token numbers up to {VOCABULARY}, but the network embeds {VOCABULARY}" in refused(
        place
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", "{}"),
        ("tokenizer.json", "a"),
        ("tokenizer.json", '{"model": {"vocab": {"a": 1}}, "added_tokens": 5}'),
        ("vocab.json", "[]"),
    ],
)
def test_a_tokenizer_that_is_damaged(folder: Any, name: str, text: str) -> None:
    place = folder("gpt2")
    (place / name).write_text(text)
    refused(place)


def test_a_tokenizer_that_fits(folder: Any) -> None:
    place = folder("gpt2")
    (place / "vocab.json").write_text(json.dumps({"a": 0, "b": VOCABULARY - 1}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    names = ("vocab.json", "merges.txt", "generation_config.json")
    assert read_checkpoint(place).tokenizer_files == names


def test_texts_longer_than_the_positions(folder: Any) -> None:
    for family in ("bert", "gpt2", "llama"):
        network = read_checkpoint(folder(family)).network()
        fits = torch.ones(1, POSITIONS, dtype=torch.int64)
        network(fits)
        with pytest.raises(UsageError, match=f"{POSITIONS + 1} tokens, but"):
            network(torch.ones(1, POSITIONS + 1, dtype=torch.int64))


# -- sentence-transformers -------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pooling_mode_max_tokens", "pooling_mode_lasttoken"])
def test_pooling_that_is_not_known(folder: Any, mode: str) -> None:
    assert f"pooling by {mode}" in refused(st_folder(folder("bert"), mode))


def test_pooling_twice(folder: Any) -> None:
    place = st_folder(folder("bert"))
    file = place / "1_Pooling" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pooling_mode_cls_token": True}))
    assert "mean and cls" in refused(place)


@pytest.mark.parametrize("mode", [{}, [{}], [], ["mean", "cls"], "max"])
def test_newer_pooling_that_is_not_known(folder: Any, mode: Any) -> None:
    place = st_folder(folder("bert"))
    file = place / "1_Pooling" / "config.json"
    file.write_text('{"pooling_mode": "cls"}')
    assert read_checkpoint(place).settings.pooling == "first"
    file.write_text(json.dumps({"pooling_mode": mode}))
    assert "known is one of mean and cls" in refused(place)


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        ([{"type": "a.Transformer", "path": ""}], "lists the modules Transformer;"),
        (
            [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling"}, {"type": "a.Dense"}],
            "Dense",
        ),
        ([{"type": "a.Transformer", "path": "0_T"}, {"type": "a.Pooling"}], "in '0_T'"),
        ([{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "../x"}], "'../x'"),
        (
            [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": ".."}],
            "in '..'; known is a folder beside it",
        ),
        (
            [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "."}],
            "in '.'; known is a folder beside it",
        ),
        ({"a": 1}, "no list of modules"),
    ],
)
def test_modules_that_are_not_known(folder: Any, modules: Any, words: str) -> None:
    place = st_folder(folder("bert"))
    (place / "modules.json").write_text(json.dumps(modules))
    assert words in refused(place)


def test_embeddings_by_a_decoder(folder: Any) -> None:
    assert "known for that is bert" in refused(st_folder(folder("llama")))


@pytest.mark.parametrize(("length", "found"), [(24, 24), (10**30, None)])
def test_newer_folders_of_sentence_transformers_cut_texts_with_their_tokenizer(
    folder: Any, length: int, found: int | None
) -> None:
    place = st_folder(folder("bert"))
    (place / "sentence_bert_config.json").write_text('{"transformer_task": "feature-extraction"}')
    (place / "tokenizer_config.json").write_text(json.dumps({"model_max_length": length}))
    sentence = read_checkpoint(place).sentence
    assert sentence is not None and sentence.max_tokens == found


def test_prompts(folder: Any) -> None:
    place = st_folder(folder("bert"))
    file = place / "config_sentence_transformers.json"
    file.write_text(json.dumps({"prompts": {"query": "ask: "}, "default_prompt_name": "query"}))
    sentence = read_checkpoint(place).sentence
    assert sentence is not None and sentence.prompt == "ask: " and sentence.max_tokens == 32
    for prompts, name in (({}, "query"), ({}, []), ({"query": 3}, "query"), ("query", "query")):
        file.write_text(json.dumps({"prompts": prompts, "default_prompt_name": name}))
        assert "which is none of prompts" in refused(place)


def test_prompts_without_a_default_go_by_role(folder: Any) -> None:
    place = st_folder(folder("bert"))
    file = place / "config_sentence_transformers.json"
    for prompts, passage, query in (
        ({"query": "", "document": ""}, "", ""),
        ({"query": "ask: ", "passage": ""}, "", "ask: "),
        ({"query": "ask: ", "passage": "b: ", "document": "a: ", "sort": "c: "}, "a: ", "ask: "),
        ({"sort": "c: "}, "", ""),  # which is asked for by name only
    ):
        file.write_text(json.dumps({"prompts": prompts, "default_prompt_name": None}))
        sentence = read_checkpoint(place).sentence
        assert sentence is not None and (sentence.prompt, sentence.query_prompt) == (passage, query)
        assert sentence.by_role == any((passage, query))
    file.write_text(json.dumps({"prompts": {"query": 3}}))
    assert "the prompt query is 3; right is a text" in refused(place)


@pytest.mark.parametrize("name", ["dot", "euclidean", "manhattan", "cosine", None])
@pytest.mark.parametrize("unit_length", [True, False])
def test_embeddings_are_compared_by_cosines(folder: Any, name: Any, unit_length: bool) -> None:
    place = st_folder(folder("bert"), unit_length=unit_length)
    file = place / "config_sentence_transformers.json"
    file.write_text(json.dumps({"similarity_fn_name": name}))
    if name in (None, "cosine") or (unit_length and name != "manhattan"):
        assert read_checkpoint(place).sentence is not None
    else:
        told = refused(place)
        assert f"compares embeddings by {name!r} (similarity_fn_name)" in told
        assert "give a checkpoint for cosine, or for dot or euclidean with Normalize" in told
