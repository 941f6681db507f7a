"""Exports of searches that began with a checkpoint: in its own format, where its family has it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from nas.console.app import app
from nas.results.export import verify_export
from nas.run.checkpoint import starting_point
from nas.run.folder import RunFolder
from search_spaces.architecture import Architecture
from search_spaces.errors import DataError
from search_spaces.loading import dump_space
from supernet.blueprint import Blueprint
from supernet.building import build_network
from supernet.data.examples import enlarge
from supernet.data.prepare import prepare
from supernet.data.prepare.image_files import read_picture
from supernet.data.prepare.plan import PrepareRequest
from supernet.export.contents import Preprocessing, ReferenceOutputs
from supernet.export.formats import ExportSource
from supernet.export.huggingface import HuggingFaceExport
from supernet.export.stock import write_stock
from supernet.export.weights import read_tensors
from supernet.pretrained.checkpoint import read_checkpoint
from supernet.training.checkpoint import save
from tests.support.export_cases import export_to, hub_without_net, module_of, seal
from tests.support.prepare_cases import pictures, png, silent
from tests.support.pretrained_cases import (
    POSITIONS,
    change_config,
    sentence_encoder,
    write_model,
)
from tests.support.tokenizer_cases import (
    byte_level,
    prepared_stream,
    word_pieces,
    write_checkpoint,
)
from tests.support.trained_cases import begun

pytestmark = pytest.mark.export

MARKS = {"bos_token": "<begin>", "model_max_length": 30}


@pytest.fixture(autouse=True, scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from hub_without_net(tmp_path_factory)


@pytest.fixture(scope="module")
def llama(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / "llama"
    write_model(hub, folder, "llama", vocab_size=280)
    return write_checkpoint(folder, byte_level(marked=True), tokenizer_class=CLASS, **MARKS)


CLASS = "PreTrainedTokenizerFast"


def network_of(folder: Path, ffn_dims: tuple[int, ...], kind: str = "softmax") -> Architecture:
    """The checkpoint's network with as many layers as widths, the first of another kind."""
    ((name, stack),) = read_checkpoint(folder).architecture.to_json().items()
    layers = [
        {**layer, "ffn_dim": width} for layer, width in zip(stack["layers"], ffn_dims, strict=False)
    ]
    layers[0]["attention" if name == "encoder" else "self_attention"] = kind
    return Architecture.from_json({name: {**stack, "layers": layers}})


def run_from(
    checkpoint: Path, network: Architecture, path: Path, positions: int | None = None
) -> RunFolder:
    """A run that began with a checkpoint and has one network, of random weights.

    Args:
        checkpoint: its folder.
        network: of its space.
        path: of the run and its data.
        positions: of the network, if not as many as the checkpoint has.
    """
    point = starting_point(checkpoint)
    if positions is not None:
        model = replace(point.space.model, max_length=positions)
        timed = {**point.space.workload, "source": positions}
        point = replace(point, space=replace(point.space, model=model, workload=timed))
    if point.space.task == "embedding":
        texts = path / "texts.txt"
        texts.write_text("".join(f"The cat sat on {n} mats, {n * n}.\n" for n in range(300)))
        where = path / "texts" / "data"
        request = PrepareRequest(
            "embedding", (texts,), where, tokenizer=checkpoint, max_length=positions
        )
        prepare(request, silent)
    else:
        prepared_stream(path / "texts", byte_level(marked=True))
    folder = begun(
        path / "run",
        dump_space(point.space),
        start=point.start,
        dataset="texts",
        data=str(path / "texts" / "data"),
    )
    model = build_network(point.space.model, point.space.task, network).network
    torch.manual_seed(1)
    state = {
        name: t + 0.1 * torch.randn(t.shape) if t.is_floating_point() else t
        for name, t in model.state_dict().items()
    }
    where = f"retrained/{network.id}"
    save(folder.path / where / "weights.pt", {"model": state, "architecture": network.to_json()})
    folder.write_json(f"{where}/result.json", {"id": network.id, "test_loss": 2.5})
    outputs = [f"{where}/result.json", f"{where}/weights.pt"]
    folder.finish(f"retrain-{network.id}", "digest", outputs, 1.0)
    return folder


@pytest.fixture(scope="module")
def run(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return run_from(llama, network_of(llama, (20, 20)), tmp_path_factory.mktemp("runs"))


@pytest.fixture
def made(run: RunFolder, tmp_path: Path) -> Path:
    return export_to(run, "huggingface", tmp_path / "out").path


@torch.inference_mode()
def test_a_stock_network_needs_no_code(hub: Any, made: Path, llama: Path) -> None:
    assert not list(made.glob("*.py"))
    model, told = hub.AutoModelForCausalLM.from_pretrained(made, output_loading_info=True)
    assert type(model).__name__ == "LlamaForCausalLM" and not any(told.values())
    record = read_tensors(made / "check.safetensors")
    logits = model.eval()(record["input.tokens"]).logits
    assert (logits - record["output.logits"]).abs().max() < 1e-4
    tokenizer = hub.AutoTokenizer.from_pretrained(made)
    assert tokenizer.bos_token == "<begin>" and tokenizer.model_max_length == 30
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (made / name).read_bytes() == (llama / name).read_bytes()
    written = model.generate(**tokenizer("The cat", return_tensors="pt"), max_new_tokens=3)
    assert written.shape[1] > 3


def test_what_it_is_is_told(made: Path) -> None:
    facts = verify_export(made).facts
    assert facts["stock"] is True and facts["family"] == "a stock llama"
    assert "model.safetensors" in facts["files"] and facts["start"]["name"] == "llama"
    card = (made / "README.md").read_text()
    assert "AutoModelForCausalLM" in card and "trust_remote_code" not in card
    assert "no code in this folder" in card and "with the checkpoint llama" in card


def printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """What the lines of a card print in its folder."""
    card = (folder / "README.md").read_text()
    (lines,) = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(folder)
    exec(lines, {})
    return capsys.readouterr().out


def test_lines_of_a_stock_card_go_on_with_a_text(
    hub: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_model(hub, tmp_path / "llama", "llama", vocab_size=271)
    llama = write_checkpoint(tmp_path / "llama", byte_level(marked=True), tokenizer_class=CLASS)
    run = run_from(llama, network_of(llama, (20, 20)), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out").path
    given = ["predict", str(run.path), "--tokens", str(POSITIONS // 2), "--json"]
    expected = json.loads(CliRunner().invoke(app, given, input="a text\n").stdout)["answer"]
    assert printed(made, monkeypatch, capsys).split() == expected.split()


def test_lines_of_a_stock_card_lead_to_a_class(
    hub: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = read_checkpoint(write_model(hub, tmp_path / "vit", "vit", num_channels=3))
    network, names, made = found.network(), tuple("abcde"), tmp_path / "out"
    blueprint = Blueprint("classification", found.settings, found.architecture)
    reading = {"black": [-1.0] * 3, "white": [1.0] * 3, "side": 8, "image_size": 12}
    preprocessing = Preprocessing({"kind": "images", **reading}, labels=names)
    source = ExportSource(blueprint, network, ReferenceOutputs({}, {}), preprocessing, found)
    made.mkdir()
    write_stock(source, made)
    (made / "reading.json").write_text(json.dumps({**reading, "labels": names}))
    (made / "README.md").write_text(HuggingFaceExport().usage(source))
    (made / "picture.png").write_bytes(png(pictures(1)[0][0]))
    pixels = torch.tensor(read_picture(made / "picture.png", 3, 8) / 127.5 - 1).float()
    with torch.inference_mode():
        best = int(network(enlarge(pixels.permute(2, 0, 1)[None], 12)).argmax())
    assert printed(made, monkeypatch, capsys) == f"{names[best]}\n"


@torch.inference_mode()
def test_lines_of_a_stock_card_embed_a_text(
    hub: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_model(hub, tmp_path / "bert", "bert", vocab_size=90)
    bert = write_checkpoint(tmp_path / "bert", word_pieces(), pad_token="[PAD]")
    run = run_from(bert, network_of(bert, (20, 20)), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out").path
    found = torch.tensor(json.loads(printed(made, monkeypatch, capsys)))
    module = module_of(export_to(run, "safetensors", tmp_path / "plain").path)
    _, expected = module.load_network()(torch.tensor([word_pieces().encode("a text").ids]))
    assert (found - expected[0]).abs().max() < 1e-4


def test_another_network_brings_its_code(hub: Any, llama: Path, tmp_path: Path) -> None:
    """Each its own, though both folders have one name."""
    for number, (widths, kind, why) in enumerate(
        (
            ((20, 30), "softmax", "its layers differ in ffn_dim (20, 30)"),
            ((20, 20), "linear", "llama knows softmax only, not 'linear'"),
        )
    ):
        path = tmp_path / str(number)
        run = run_from(llama, network_of(llama, widths, kind), path)
        found = export_to(run, "huggingface", path / "out")
        assert found.facts["stock"] is False
        assert found.facts["family"].startswith(f"not a stock llama: {why}")
        model = hub.AutoModelForCausalLM.from_pretrained(found.path, trust_remote_code=True)
        assert type(model).__name__ == "NasForCausalLM"
        verify_export(found.path)


@torch.inference_mode()
def test_another_network_answers_as_its_family_or_refuses(
    hub: Any, llama: Path, tmp_path: Path
) -> None:
    run = run_from(llama, network_of(llama, (20, 20), "linear"), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out").path
    load = {"trust_remote_code": True}
    bare = hub.AutoModel.from_pretrained(made, **load).eval()
    model = hub.AutoModelForCausalLM.from_pretrained(made, **load).eval()
    tokens = torch.arange(10, 22).reshape(2, 6)
    logits = model(tokens).logits
    first = bare(tokens[:, :4])
    behind = bare(tokens[:, 4:], past_key_values=first.past_key_values)
    states = torch.cat((first.last_hidden_state, behind.last_hidden_state), dim=1)
    assert (bare(tokens).last_hidden_state - states).abs().max() < 1e-5
    assert (model.network.tell(states) - logits).abs().max() < 1e-5
    assert bare.get_input_embeddings() is bare.network.embedding
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    padded = model(tokens, attention_mask=mask, position_ids=torch.arange(6)[None]).logits
    assert torch.equal(padded, logits)
    assert model(tokens, attention_mask=mask).past_key_values is None
    for given, words in (
        ({"attention_mask": mask.flip(1)}, "padding stands at the end"),
        ({"attention_mask": torch.ones(2, 1, 6, 6).tril()}, "padding stands at the end"),
        ({"attention_mask": mask, "past_key_values": first.past_key_values}, "nothing goes on"),
        ({"position_ids": torch.arange(1, 7)[None]}, "position_ids is left out"),
        ({"token_type_ids": mask}, "token_type_ids has to be 0"),
        ({"output_hidden_states": True}, "output_hidden_states is nothing"),
    ):
        with pytest.raises(ValueError, match=words):
            model(tokens, **given)
    with pytest.raises(ValueError, match="equally long"):
        model.generate(tokens, attention_mask=mask, max_new_tokens=2)
    assert model(tokens, token_type_ids=0 * mask, output_attentions=False).logits.equal(logits)


@torch.inference_mode()
def test_another_network_writes_as_its_checkpoint_does(
    hub: Any, llama: Path, tmp_path: Path
) -> None:
    """With its templates, its way of sampling, and an end at each of its end marks."""
    chatty = shutil.copytree(llama, tmp_path / "llama")
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    (chatty / "chat_template.jinja").write_text(template)
    (chatty / "additional_chat_templates").mkdir()
    (chatty / "additional_chat_templates/short.jinja").write_text("short")
    said = {"eos_token_id": [0, 5], "do_sample": True, "temperature": 0.7, "max_length": 9999}
    (chatty / "generation_config.json").write_text(json.dumps(said))
    run = run_from(chatty, network_of(chatty, (20, 20), "linear"), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out").path
    verify_export(made)
    tokenizer = hub.AutoTokenizer.from_pretrained(made)
    talk = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False) == "user: hi"
    assert tokenizer.apply_chat_template(talk, chat_template="short", tokenize=False) == "short"
    model = hub.AutoModelForCausalLM.from_pretrained(made, trust_remote_code=True).eval()
    assert (model.generation_config.do_sample, model.generation_config.temperature) == (True, 0.7)
    assert model.generation_config.max_length == POSITIONS
    inputs = torch.arange(10, 18)[None]
    for mark, new in ((0, 1), (5, 1), (6, 4)):
        bias = [[[mark], 1e4]]
        written = model.generate(inputs, sequence_bias=bias, max_new_tokens=4)
        assert written[0, 8:].tolist() == [mark] * new


def test_a_template_may_stand_in_the_tokenizers_settings(
    hub: Any, llama: Path, tmp_path: Path
) -> None:
    chatty = shutil.copytree(llama, tmp_path / "llama")
    file = chatty / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": "older"}))
    run = run_from(chatty, network_of(chatty, (20, 20), "linear"), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out").path
    talk = [{"role": "user", "content": "hi"}]
    tokenizer = hub.AutoTokenizer.from_pretrained(made)
    assert tokenizer.apply_chat_template(talk, tokenize=False) == "older"


def test_the_command_tells_it(run: RunFolder, tmp_path: Path) -> None:
    given = ["export", str(run.path), "--format", "huggingface", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, given)
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == "family      a stock llama"
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "out")])
    assert done.exit_code == 0 and done.stdout.splitlines()[-1] == "family      a stock llama"


def test_other_weights_or_sizes_are_found(made: Path) -> None:
    change_config(made, rms_norm_eps=0.5)
    with pytest.raises(DataError, match=r"config\.json was changed"):
        verify_export(made)
    seal(made)
    with pytest.raises(DataError, match="not the same network"):
        verify_export(made)
    change_config(made, num_hidden_layers=1)
    seal(made)
    with pytest.raises(DataError, match="not known of the family llama"):
        verify_export(made)


def test_what_was_exported_is_a_checkpoint_again(made: Path, run: RunFolder) -> None:
    found = read_checkpoint(made)
    assert found.architecture.id == json.loads((made / "export.json").read_text())["id"]
    point = starting_point(made)
    assert point.space.contains(found.architecture)


@pytest.fixture(scope="module")
def bert(hub: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_encoder(hub, tmp_path_factory.mktemp("checkpoints") / "bert")


@pytest.fixture(scope="module")
def embedder(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a network that no family has."""
    network = network_of(bert, (20, 30), "linear")
    return run_from(bert, network, tmp_path_factory.mktemp("runs"))


def real(tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    return (tensors["input.tokens"] != 0)[:, :, None]


@torch.inference_mode()
def test_a_stock_encoder_stays_one_of_sentence_transformers(
    hub: Any, bert: Path, tmp_path: Path
) -> None:
    run = run_from(bert, network_of(bert, (20, 20)), tmp_path)
    made = export_to(run, "huggingface", tmp_path / "out")
    assert made.facts["family"] == "a stock bert"
    assert not list(made.path.glob("*.py")) and read_checkpoint(made.path).sentence is not None
    assert "SentenceTransformer(str(Path.cwd()))" in (made.path / "README.md").read_text()
    model = hub.AutoModel.from_pretrained(made.path).eval()
    assert type(model).__name__ == "BertModel"
    record = read_tensors(made.path / "check.safetensors")
    tokens = record["input.tokens"]
    states = model(tokens, attention_mask=(tokens != 0).long()).last_hidden_state
    apart = (states - record["output.last_hidden_state"]) * real(record)
    assert apart.abs().max() < 1e-5
    point = starting_point(made.path)
    assert point.space.task == "embedding"


@torch.inference_mode()
def test_another_encoder_answers_as_auto_models_do(
    hub: Any, embedder: RunFolder, tmp_path: Path
) -> None:
    made = export_to(embedder, "huggingface", tmp_path / "out").path
    record = read_tensors(made / "check.safetensors")
    tokens = record["input.tokens"]
    model = hub.AutoModel.from_pretrained(made, trust_remote_code=True).eval()
    found = model(tokens, attention_mask=(tokens != 0).long())
    apart = (found.last_hidden_state - record["output.last_hidden_state"]) * real(record)
    assert apart.abs().max() < 1e-4
    assert (found.pooler_output - record["output.sentence_embedding"]).abs().max() < 1e-4
    pooling = json.loads((made / "1_Pooling/config.json").read_text())
    assert pooling["word_embedding_dimension"] == 24 and (made / "modules.json").is_file()
    tokenizer = hub.AutoTokenizer.from_pretrained(made)
    assert tokenizer("The cat")["input_ids"][0] == 2
    verify_export(made)


@pytest.mark.parametrize(("positions", "most"), [(16, 16), (None, 32)])
def test_another_encoder_asks_for_no_longer_texts_than_it_has_positions(
    bert: Path, tmp_path: Path, positions: int | None, most: int
) -> None:
    run = run_from(bert, network_of(bert, (20, 30), "linear"), tmp_path, positions)
    made = export_to(run, "huggingface", tmp_path / "out").path
    for file, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        assert json.loads((made / file).read_text())[key] == most


@torch.inference_mode()
@pytest.mark.parametrize(
    "form", ["safetensors", "torch", pytest.param("onnx", marks=pytest.mark.slow)]
)
def test_encoders_in_other_formats(embedder: RunFolder, form: str, tmp_path: Path) -> None:
    if form == "onnx":
        pytest.importorskip("onnxruntime", reason="the extra export")
    made = export_to(embedder, form, tmp_path / "out")
    assert verify_export(made.path).difference < 1e-4
    card = (made.path / "README.md").read_text()
    assert "embeddings" in card and "fine-tuned" in card
    for given, told in (
        (made.path, f"{made.path}/README.md has the lines that make a vector"),
        (embedder.path, "the README.md of what nas export makes has the lines"),
    ):
        done = CliRunner().invoke(app, ["predict", str(given)], input="a text\n")
        assert done.exit_code == 2 and told in " ".join(done.stderr.split())
    if form != "safetensors":
        return
    checked = subprocess.run(
        [sys.executable, "modeling.py", "--check"],
        cwd=made.path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0 and "within" in checked.stdout, checked.stderr


def test_cards_write_texts_as_the_checkpoint_reads_them(bert: Path, tmp_path: Path) -> None:
    prompted = shutil.copytree(bert, tmp_path / "bert")
    prompts = {"default_prompt_name": "ask", "prompts": {"ask": 'Find "{it}": '}}
    (prompted / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    length = {"max_seq_length": 9, "do_lower_case": True}
    (prompted / "sentence_bert_config.json").write_text(json.dumps(length))
    assert starting_point(prompted).start.digest != starting_point(bert).start.digest
    run = run_from(prompted, network_of(bert, (20, 30), "linear"), tmp_path)
    for form, lines in (
        ("torch", ("tokenizer.enable_truncation(9)",)),
        ("huggingface", ("padding=True, truncation=True",)),
    ):
        made = export_to(run, form, tmp_path / form).path
        card = (made / "README.md").read_text()
        for line in ('["Find \\"{it}\\": a text".lower()]', *lines)[form == "torch" :]:
            assert line in card
        assert "texts are cut to 9 tokens, marks included, and not filled up" in card
        assert "neither cut" not in card
        if form == "torch":
            assert '.encode("Find \\"{it}\\": a text".lower())' in card
    assert json.loads((made / "tokenizer_config.json").read_text())["model_max_length"] == 9


def test_how_embeddings_are_compared_and_prompts_by_role_go_along(
    bert: Path, tmp_path: Path
) -> None:
    prompted = shutil.copytree(bert, tmp_path / "bert")
    prompts = {"query": "Find ", "document": 'Of "it": '}
    said = {"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "dot"}
    (prompted / "config_sentence_transformers.json").write_text(json.dumps(said, indent=3))
    for number, (widths, kind, line) in enumerate(
        (
            ((20, 20), "softmax", 'model.encode(["a text"], prompt="Of \\"it\\": ")'),
            ((20, 30), "linear", 'texts = ["Of \\"it\\": a text"]'),
        )
    ):
        path = tmp_path / str(number)
        path.mkdir()
        run = run_from(prompted, network_of(prompted, widths, kind), path)
        made = export_to(run, "huggingface", path / "out").path
        name = "config_sentence_transformers.json"
        assert (made / name).read_bytes() == (prompted / name).read_bytes()
        assert line in (made / "README.md").read_text()


def test_other_formats_do_without_the_checkpoint(llama: Path, tmp_path: Path) -> None:
    copy = tmp_path / "llama"
    copy.mkdir()
    for file in llama.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    run = run_from(copy, network_of(llama, (20, 20)), tmp_path)
    (copy / "config.json").unlink()
    assert "family" not in export_to(run, "safetensors", tmp_path / "plain").facts
    with pytest.raises(DataError, match="config"):
        export_to(run, "huggingface", tmp_path / "out")
    assert not (tmp_path / "out").exists()
