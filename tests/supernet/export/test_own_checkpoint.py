"""Exports that no family of transformers has, as checkpoints that a search begins with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from nas.request.spec import Start
from nas.results.export import verify_export
from nas.run.checkpoint import check_tokenizer, starting_point
from search_spaces.architecture import Architecture, DecoderLayer, DecoderStack
from search_spaces.errors import DataError, UsageError
from search_spaces.loading import parse_space
from search_spaces.settings import ModelSettings, TokenInput
from supernet.blueprint import Blueprint
from supernet.building import build_network, build_supernet
from supernet.data.prepare import prepare
from supernet.data.prepare.plan import PrepareRequest
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportSource
from supernet.export.huggingface import HuggingFaceExport
from supernet.export.weights import read_tensors, write_tensors
from supernet.inheritance.inherit import inherit
from supernet.inheritance.local import LocalDistillation
from supernet.pretrained.checkpoint import Checkpoint, read_checkpoint
from supernet.pretrained.space import space_around, space_problem, space_text
from tests.supernet.export.test_checkpoint import CLASS, MARKS, run_from
from tests.support.export_cases import export_to, hub_without_net, run_of
from tests.support.prepare_cases import silent
from tests.support.pretrained_cases import (
    change_config,
    inputs_of,
    sentence_encoder,
    write_model,
)
from tests.support.tokenizer_cases import byte_level, write_checkpoint

pytestmark = pytest.mark.export

# Of each family what its three layers become; all sizes differ from layer to layer.
KINDS = {
    "llama": ("linear", "window:16", "softmax"),
    "bert": ("linear", "window:2", "softmax"),
    "vit": ("linear", "softmax", "linear"),
    "llama-": ("skip", "linear", "softmax"),
    "bert-": ("softmax", "skip", "linear"),
    "vit-": ("softmax", "linear", "skip"),
}
WIDTHS = (20, 30, 40)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


def origin(hub: Any, folder: Path, variant: str) -> Path:
    family = variant.rstrip("-")
    if family == "bert":
        return sentence_encoder(hub, folder)
    if family == "vit":
        return write_model(hub, folder, "vit")
    write_model(hub, folder, "llama", vocab_size=280)
    return write_checkpoint(folder, byte_level(marked=True), tokenizer_class=CLASS, **MARKS)


def hybrid(checkpoint: Path, kinds: tuple[str, ...]) -> Architecture:
    ((name, stack),) = read_checkpoint(checkpoint).architecture.to_json().items()
    own = "" if name == "encoder" else "self_"
    none = {f"{own}num_heads": 1, f"{own}num_kv_heads": None}
    layers = [
        {**layer, f"{own}attention": kind, "ffn_dim": width, **(none if kind == "skip" else {})}
        for layer, kind, width in zip(stack["layers"], kinds, WIDTHS, strict=True)
    ]
    return Architecture.from_json({name: {**stack, "layers": layers}})


def exported(family: str, checkpoint: Path, place: Path) -> Path:
    """The folder of a network of `KINDS` around a checkpoint, of random weights."""
    network = hybrid(checkpoint, KINDS[family])
    if not family.startswith("vit"):
        return export_to(run_from(checkpoint, network, place), "huggingface", place / "out").path
    found = read_checkpoint(checkpoint)
    space = space_around(found)
    alone = build_network(space.model, space.task, network).eval()
    blueprint, folder = Blueprint(space.task, space.model, network), place / "out"
    facts = {"kind": "images", "black": [-1.0, -2.0], "white": [1.0, 3.0], "image_size": 12}
    preprocessing = Preprocessing(facts, labels=tuple("abcde"))
    images = inputs_of(found, 1)
    with torch.inference_mode():
        reference = ReferenceOutputs({"inputs": images}, {"logits": alone(images)})
    folder.mkdir()
    source = ExportSource(blueprint, alone, reference, preprocessing, found)
    HuggingFaceExport().write(source, folder)
    torch.save(reference.outputs["logits"], place / "logits.pt")
    return folder


@pytest.fixture(scope="module", params=KINDS)
def made(hub: Any, request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp(request.param)
    return exported(request.param, origin(hub, place / "origin", request.param), place)


@pytest.fixture
def llama(hub: Any, tmp_path: Path) -> Path:
    return exported("llama", origin(hub, tmp_path / "origin", "llama"), tmp_path)


def family_of(folder: Path) -> str:
    return folder.parent.name.rstrip("0123456789")


def answers(found: Any) -> Tensor:
    return found if isinstance(found, Tensor) else found[1]


def reading(checkpoint: Checkpoint, seed: int) -> Tensor:
    if checkpoint.task == "classification":
        return torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(seed))
    tokens = torch.randint(3, 60, (3, 20), generator=torch.Generator().manual_seed(seed))
    return tokens.masked_fill(torch.arange(20) >= torch.tensor([[20], [17], [9]]), 0)


@torch.inference_mode()
def test_its_network_says_what_the_exported_one_said(made: Path) -> None:
    found = read_checkpoint(made)
    assert found.family == "nas_network" and found.padding == 0
    said = answers(found.network()(*_recorded(made)))
    assert (said - _expected(made)).abs().max() < 1e-5


def _recorded(folder: Path) -> tuple[Tensor, ...]:
    if family_of(folder).startswith("vit"):
        return (torch.randn(3, 2, 12, 12, generator=torch.Generator().manual_seed(1)),)
    return (read_tensors(folder / "check.safetensors")["input.tokens"],)


def _expected(folder: Path) -> Tensor:
    if family_of(folder).startswith("vit"):
        return torch.load(folder.parent / "logits.pt")
    record = read_tensors(folder / "check.safetensors")
    return record.get("output.sentence_embedding", record.get("output.logits"))


@torch.inference_mode()
def test_the_largest_network_around_it_is_it(made: Path) -> None:
    """With heads and neurons in another order, but for heads that their kernel knows."""
    checkpoint = read_checkpoint(made)
    space = space_around(checkpoint)
    assert space_problem(space, checkpoint) is None
    assert parse_space(space_text(checkpoint), "space.toml").digest == space.digest
    batches = [reading(checkpoint, seed) for seed in range(3)]
    supernet = build_supernet(space).eval()
    supernet.load_state_dict(inherit(space, checkpoint, batches))
    given = reading(checkpoint, 7)
    right = answers(checkpoint.network()(given))
    apart = (answers(supernet(given, checkpoint.architecture)) - right).abs().max()
    assert apart < 1e-4 * right.abs().max()


def test_other_kinds_learn_from_its_layers(made: Path) -> None:
    checkpoint = read_checkpoint(made)
    space = space_around(checkpoint)
    weights = inherit(space, checkpoint, [reading(checkpoint, 1)])
    local = LocalDistillation(
        space,
        weights,
        checkpoint,
        lambda _: reading(checkpoint, 0),
        updates=8,
        learning_rate=1e-3,
    )
    first, *_, last = (report.error for report in local.run())
    assert last < first
    kinds = KINDS[family_of(made)]
    assert not any(f"{number}.{kind}" in local.errors() for number, kind in enumerate(kinds))


def test_images_are_normalised_as_it_says(hub: Any, tmp_path: Path) -> None:
    made = exported("vit", origin(hub, tmp_path / "origin", "vit"), tmp_path)
    space = space_around(read_checkpoint(made))
    assert space.data["mean"] == pytest.approx([0.5, 0.4])
    assert space.data["std"] == pytest.approx([0.5, 0.2])


@torch.inference_mode()
@pytest.mark.parametrize(
    ("family", "auto"), [("llama", "AutoModelForCausalLM"), ("bert", "AutoModel")]
)
def test_what_was_found_around_it_is_exported_in_turn(
    hub: Any, tmp_path: Path, family: str, auto: str
) -> None:
    """Its texts are prepared with the export's own tokenizer and, as vectors, by its network."""
    first = exported(family, origin(hub, tmp_path / "origin", family), tmp_path)
    place = tmp_path / "again"
    place.mkdir()
    smaller = hybrid(first, ("linear", "linear", "softmax"))
    found = export_to(run_from(first, smaller, place), "huggingface", place / "out")
    assert found.facts["stock"] is False and "brings its code itself" in found.facts["family"]
    verify_export(found.path)
    model = getattr(hub, auto).from_pretrained(found.path, trust_remote_code=True).eval()
    record = read_tensors(found.path / "check.safetensors")
    tokens = record["input.tokens"]
    said = model(tokens, attention_mask=(tokens != 0).long() if family == "bert" else None)
    mine = said.logits if family == "llama" else said.pooler_output
    assert (mine - _expected(found.path)).abs().max() < 1e-4
    assert starting_point(found.path).space.contains(smaller)


def refused(folder: Path) -> str:
    with pytest.raises(DataError) as error:
        read_checkpoint(folder)
    return str(error.value)


def described(folder: Path, **changes: Any) -> None:
    """Another network in the description, its id and parameters right."""
    values = json.loads((folder / "config.json").read_text())["description"]
    ((name, stack),) = values["architecture"].items()
    task = changes.pop("task", values["task"])
    architecture = Architecture.from_json({name: {**stack, **changes}})
    settings = Blueprint.from_json(values).settings
    change_config(folder, description=Blueprint(task, settings, architecture).to_json())


def test_what_is_wrong_with_one_is_told(llama: Path, tmp_path: Path) -> None:
    def copied() -> Path:
        return shutil.copytree(llama, tmp_path / "copy", dirs_exist_ok=True)

    layers = json.loads((llama / "config.json").read_text())["description"]["architecture"]
    first, *rest = layers["decoder"]["layers"]
    place = copied()
    described(place, layers=[{**first, "self_attention": "omni"}, *rest])
    assert "softmax, window, linear, skip; one of its is omni" in refused(place)
    place = copied()
    described(place, layers=[first])
    assert "has the tensor network.decoder.layers.1" in refused(place)
    place = copied()
    described(place, layers=[{**first, "ffn_dim": 21}, *rest])
    assert "but by config.json it is" in refused(place)
    for value in (None, [], {"format": 1}, {"format": 1, "task": "language_modelling"}):
        place = copied()
        change_config(place, description=value)
        assert "description of" in refused(place) and "config.json" in refused(place)
    place = copied()
    change_config(place, mystery=3)
    assert "'mystery'" in refused(place)


def test_networks_that_write_from_scratch(tmp_path: Path) -> None:
    """Their tokenizer is code in the folder, which is not read; data keep it themselves."""
    made = export_to(
        run_of(tmp_path / "run", "language_modelling"), "huggingface", tmp_path / "out"
    )
    checkpoint = read_checkpoint(made.path)
    assert checkpoint.task == "language_modelling" and checkpoint.tokenizer_files == ()
    space = space_around(checkpoint)
    texts = tmp_path / "texts.txt"
    texts.write_text("a text\n" * 100)
    request = PrepareRequest(space.task, (texts,), tmp_path / "data", tokenizer=made.path)
    with pytest.raises(UsageError, match="takes the prepared folder that its own search was given"):
        prepare(request, silent)


def test_data_have_to_have_its_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts, data, export = (tmp_path / name for name in ("texts.txt", "data", "export"))
    texts.write_text("".join(f"line {number} of a text\n" for number in range(300)))
    prepare(PrepareRequest("language_modelling", (texts,), data, vocab_size=270), silent)
    found = SimpleNamespace(settings=SimpleNamespace(input=TokenInput(vocab_size=300)))
    monkeypatch.setattr("nas.run.checkpoint.read_checkpoint", lambda _: found)
    export.mkdir()
    start = Start(folder=str(export), digest="0" * 64)
    (export / "vocabulary.model").write_bytes((data / "tokenizer.model").read_bytes())
    check_tokenizer(data, start, "language_modelling")
    (export / "vocabulary.model").write_bytes(b"another")
    with pytest.raises(DataError, match="another vocabulary than that of the export export"):
        check_tokenizer(data, start, "language_modelling")


def test_what_no_search_begins_with_is_told(tmp_path: Path) -> None:
    made = export_to(run_of(tmp_path / "run", "translation"), "huggingface", tmp_path / "out")
    assert "it translates, and checkpoints write texts" in refused(made.path)


def written(
    folder: Path, settings: ModelSettings, layers: Sequence[DecoderLayer], width: int = 24
) -> Checkpoint:
    """The checkpoint of an export of random weights, without a tokenizer."""
    network = Architecture(decoder=DecoderStack(width, tuple(layers)))
    alone = build_network(settings, "language_modelling", network).eval()
    blueprint = Blueprint("language_modelling", settings, network)
    preprocessing = Preprocessing({"kind": "bytes", "num_words": None})
    folder.mkdir()
    source = ExportSource(blueprint, alone, ReferenceOutputs({}, {}), preprocessing)
    HuggingFaceExport().write(source, folder)
    return read_checkpoint(folder)


def layer(kind: str, heads: int = 4, keys: int | None = None) -> DecoderLayer:
    return DecoderLayer(kind, heads, 16, self_num_kv_heads=keys)


PLAIN = ModelSettings(input=TokenInput(vocab_size=257), max_length=128, head_dim=6)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"window": 16}, [layer("window"), layer("softmax")]),
        ({"linear_kernel": "elu"}, [layer("linear:gated_delta"), layer("softmax")]),
        ({"linear_kernel": "elu"}, [layer("linear:gated_delta"), layer("linear")]),
        ({"head_dim": None, "qkv_dim": 48}, [layer("softmax"), layer("linear")]),
        ({}, [layer("softmax"), layer("softmax", 4, 2)]),
        ({}, [layer("softmax", 4, 2), layer("softmax")]),
        ({}, [layer("softmax", 4), layer("linear", 2)]),
    ],
    ids=["usual window", "kernel", "two kernels", "one width", "all keys", "fewer keys", "heads"],
)
def test_networks_of_other_spaces(
    settings: dict[str, Any], layers: list[DecoderLayer], tmp_path: Path
) -> None:
    """Whatever kinds are called, and however heads share keys or width."""
    checkpoint = written(tmp_path / "out", replace(PLAIN, **settings), layers)
    space = space_around(checkpoint)
    assert space_problem(space, checkpoint) is None
    assert parse_space(space_text(checkpoint), "space.toml").digest == space.digest
    supernet = build_supernet(space).eval()
    supernet.load_state_dict(inherit(space, checkpoint, [reading(checkpoint, 1)]))
    given = reading(checkpoint, 7)
    right = checkpoint.network()(given)
    apart = (supernet(given, checkpoint.architecture) - right).abs().max()
    assert apart < 1e-4 * right.abs().max()


def test_what_no_space_can_hold_is_told(tmp_path: Path) -> None:
    layers = [layer("linear"), layer("linear:elu")]
    checkpoint = written(tmp_path / "out", replace(PLAIN, linear_kernel="elu"), layers)
    with pytest.raises(DataError, match="no search begins with .*out: the space around it, line"):
        space_around(checkpoint)


def test_descriptions_that_mean_harm(llama: Path) -> None:
    right = json.loads((llama / "config.json").read_text())["description"]
    (decoder,) = right["architecture"].values()
    wide = {**decoder, "embed_dim": 10**30}
    deep = {**decoder, "layers": decoder["layers"] * 1000}
    for changes, told in (
        ({"task": []}, "task is []"),
        ({"architecture": {"decoder": wide}}, "'embed_dim' is larger than 1,000,000"),
        ({"architecture": {"decoder": deep}}, "3,000 layers; allowed are up to 1,000"),
        ({"id": "a" * 10**6}, "id is"),
        ({"architecture": "a" * 10**6}, "describes no network"),
        ({"model": {**right["model"], "norm": "b" * 10**6}}, "model.norm"),
    ):
        change_config(llama, description={**right, **changes})
        said = refused(llama)
        assert told in said and len(said) < 1000
        assert said.count("description of") == 1


@pytest.mark.parametrize(
    "value", [[0.5], [0.5] * 3, [0.5, "a"], [0.5, True], [0.5, float("nan")], [0.5, 10**400]]
)
def test_a_scale_of_pictures_that_is_none(hub: Any, tmp_path: Path, value: list[Any]) -> None:
    made = exported("vit", origin(hub, tmp_path / "origin", "vit"), tmp_path)
    change_config(made, std=value)
    with pytest.raises(DataError, match="std is .*; right is a number for each channel"):
        space_around(read_checkpoint(made))
    change_config(made, std=[0.5, 0.0])
    with pytest.raises(DataError, match="std is .*; right are numbers above 0"):
        space_around(read_checkpoint(made))


def test_an_output_layer_that_nothing_has(hub: Any, tmp_path: Path) -> None:
    made = exported("vit", origin(hub, tmp_path / "origin", "vit"), tmp_path)
    file = made / "model.safetensors"
    write_tensors(file, {**read_tensors(file), "lm_head.weight": torch.zeros(2, 2)})
    assert "has the tensor lm_head.weight" in refused(made)


def test_a_space_with_another_kernel_is_not_around_it(llama: Path) -> None:
    checkpoint = read_checkpoint(llama)
    text = space_text(checkpoint).replace('"gated_delta"', '"elu"')
    problem = space_problem(parse_space(text, "space.toml"), checkpoint)
    assert problem == "the space has other settings: linear_kernel"


def test_a_layer_without_attention_stays_so(hub: Any, tmp_path: Path) -> None:
    made = exported("bert-", origin(hub, tmp_path / "origin", "bert-"), tmp_path)
    checkpoint = read_checkpoint(made)
    space = space_around(checkpoint)
    assert space.slot("encoder.num_layers").choices == (3,)
    kinds = [space.slot(f"encoder.{number}.attention").choices for number in range(3)]
    assert kinds[1] == ("skip",) and "skip" in kinds[0] == kinds[2]
    offered = ", ".join(f'"{kind}"' for kind in ("softmax", "skip"))
    text = space_text(checkpoint).replace('attention = ["skip"]', f"attention = [{offered}]")
    problem = space_problem(parse_space(text, "space.toml"), checkpoint)
    assert problem is not None and "encoder.1.attention is skip in the checkpoint" in problem
    deeper = space_text(checkpoint).replace("num_layers = [3]", "num_layers = [3, 4]")
    problem = space_problem(parse_space(deeper, "space.toml"), checkpoint)
    assert problem is not None and "more of encoder.num_layers than the checkpoint" in problem
