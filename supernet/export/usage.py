"""The lines of a model card that lead from raw input to the answer.

They run as they stand in the folder, with the packages that the card names and nothing of ours:
a picture becomes a class, a text its label, its translation, its continuation or its embedding.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import dedent
from typing import Any, Literal

from search_spaces.settings import ImageInput
from supernet.data.checkpoint_tokenizer import KIND as CHECKPOINT
from supernet.data.tokenizer import BOS, MARKS, UNKNOWN
from supernet.export.formats import ExportSource

Runtime = Literal["torch", "transformers", "onnxruntime"]

PICTURE = """\
reading = json.loads(Path("reading.json").read_text("utf-8"))
size = reading["side"]
picture = ImageOps.exif_transpose(Image.open("picture.png"))
if picture.mode.startswith("I"):  # 16 bits of grey, of which the upper 8 are kept
    wide = np.asarray(picture).astype(np.int64).clip(0, 2**16 - 1)
    picture = Image.fromarray((wide >> 8).astype(np.uint8))
picture = picture.convert("{mode}")
side = min(picture.size)
left, top = (picture.width - side) // 2, (picture.height - side) // 2
picture = picture.crop((left, top, left + side, top + side))
picture = picture.resize((size, size), Image.Resampling.BICUBIC)
{enlarged}pixels = np.asarray(picture, np.float32).reshape(size, size, -1).transpose(2, 0, 1)
black, white = (np.array(reading[name], np.float32)[:, None, None] for name in ("black", "white"))
inputs = (black + (white - black) * pixels / 255)[None]
"""
# Where the data are smaller than what the network reads.
ENLARGED = """\
size = reading["image_size"]
picture = picture.resize((size, size), Image.Resampling.BILINEAR)
"""
# Kind of reading → how a text becomes token numbers.
TEXTS = {
    "bytes": """\
reading = json.loads(Path("reading.json").read_text("utf-8"))
inputs = np.array([[byte + 1 for byte in "a text".encode()[:{longest}]]])
""",
    "symbols": """\
reading = json.loads(Path("reading.json").read_text("utf-8"))
inputs = np.array([[reading["symbols"].index(word) for word in "{word}".split()]])
""",
    "numbers": """\
reading = json.loads(Path("reading.json").read_text("utf-8"))
inputs = np.array([[1, 2, 1]])  # token numbers from 1 on
""",
    CHECKPOINT: """\
reading = json.loads(Path("reading.json").read_text("utf-8"))
tokenizer = Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({longest})
inputs = np.array([tokenizer.encode({text}).ids])
""",
}
# What a class, or a vector, is made by, of `inputs`.
LOGITS: dict[Runtime, str] = {
    "torch": "logits = load_network()(torch.tensor(inputs))[0].tolist()\n",
    "transformers": "logits = model(torch.tensor(inputs)).logits[0].tolist()\n",
    "onnxruntime": '(logits,) = session.run(None, {{"{input}": inputs}})\n'
    "logits = logits[0].tolist()\n",
}
VECTORS: dict[Runtime, str] = {
    "torch": "states, embeddings = load_network()(torch.tensor(inputs))\n",
    "onnxruntime": 'states, embeddings = session.run(None, {{"tokens": inputs}})\n',
}
CLASS = """\
best = max(range(len(logits)), key=logits.__getitem__)
print({answer})
"""
CODE = ", trust_remote_code=True"
HUB = f"model = {{auto}}.from_pretrained(Path.cwd(){CODE})\n"
HUB_TOKENIZER = f"tokenizer = AutoTokenizer.from_pretrained(Path.cwd(){CODE})\n"


def answer_lines(source: ExportSource, runtime: Runtime, auto: str = "") -> str:
    """Python from raw input to the answer, as a block of Markdown.

    Args:
        source: what is exported.
        runtime: what computes.
        auto: class of transformers that loads the folder.
    """
    task = source.blueprint.task
    if task in ("translation", "language_modelling"):
        body = _written(source, runtime, auto)
    elif runtime == "transformers" and task == "embedding":
        body = _hub_vectors(auto, source.preprocessing.facts)
    else:
        body = _computed(source, runtime, auto)
    return f"```python\n{_imports(body, runtime)}\n\n{body}```"


IMPORTS = (
    ("json.", "import json"),
    ("Path", "from pathlib import Path"),
    ("np.", "import numpy as np"),
    ("onnxruntime.", "import onnxruntime"),
    ("torch.", "import torch"),
    ("ImageOps.", "from PIL import Image, ImageOps"),
    ("SentencePieceProcessor(", "from sentencepiece import SentencePieceProcessor"),
    (" Tokenizer.", "from tokenizers import Tokenizer"),
)
OWN_NAMES = ("continue_text", "load_network", "translate")


def _imports(body: str, runtime: Runtime) -> str:
    """The imports that some lines need: Python's, those of packages, the folder's."""
    lines = [line for use, line in IMPORTS if use in body]
    known = [line for line in lines if line in ("import json", "from pathlib import Path")]
    others = [line for line in lines if line not in known]
    if runtime == "transformers":
        names = sorted({word for word in _words(body) if word.startswith("Auto")})
        others.append(f"from transformers import {', '.join(names)}")
    own = [name for name in OWN_NAMES if f"{name}(" in body]
    local = {"torch": f"from modeling import {', '.join(own)}"}.get(runtime, "")
    if runtime == "onnxruntime" and "Search()" in body:
        local = "from decode import Search, translate"
    elif runtime == "onnxruntime" and "Decoder(" in body:
        local = "from decode import Decoder, Vocabulary, continue_text"
    groups = ["\n".join(known), "\n".join(others), local]
    return "\n\n".join(filter(None, groups))


def _words(text: str) -> list[str]:
    return "".join(char if char.isalnum() else " " for char in text).split()


def _computed(source: ExportSource, runtime: Runtime, auto: str) -> str:
    """A class or an embedding: one pass of the network."""
    settings, facts = source.blueprint.settings, source.preprocessing.facts
    image = isinstance(settings.input, ImageInput)
    if isinstance(settings.input, ImageInput):
        enlarged = ENLARGED if facts["side"] < facts["image_size"] else ""
        body = PICTURE.format(
            mode="L" if settings.input.channels == 1 else "RGB", enlarged=enlarged
        )
    else:
        word = " ".join(facts.get("symbols", ("", ""))[1:4])
        longest = source.preprocessing.most_tokens(source.blueprint)
        body = TEXTS[facts["kind"]].format(longest=longest, word=word, text=_text(facts))
    embeds = source.blueprint.task == "embedding"
    graph = "embedder" if embeds else "classifier"
    if runtime == "onnxruntime":
        body += f'session = onnxruntime.InferenceSession("{graph}.onnx")\n'
    elif runtime == "transformers":
        body += HUB.format(auto=auto)
    if embeds:
        body = body.replace('reading = json.loads(Path("reading.json").read_text("utf-8"))\n', "")
        return body + VECTORS[runtime].format() + "print(embeddings[0].tolist())\n"
    body += LOGITS[runtime].format(input="images" if image else "tokens")
    named = bool(source.preprocessing.labels)
    if not named and not image and facts["kind"] != "symbols":
        body = body.replace('reading = json.loads(Path("reading.json").read_text("utf-8"))\n', "")
    return body + CLASS.format(answer='reading["labels"][best]' if named else "best")


def _hub_vectors(auto: str, facts: Mapping[str, Any]) -> str:
    return (
        HUB.format(auto=auto)
        + HUB_TOKENIZER
        + f"texts = [{_text(facts)}]\n"
        + dedent(
            """\
            inputs = tokenizer(texts, return_tensors="pt", padding=True, truncation=True)
            print(model(**inputs).pooler_output[0].tolist())
            """
        )
    )


def _text(facts: Mapping[str, Any]) -> str:
    """Python for a text as a checkpoint wants it: behind its prompt, in lower case."""
    text = json.dumps(facts.get("prompt", "") + "a text", ensure_ascii=False)
    return f"{text}.lower()" if facts.get("lower_case") else text


def _written(source: ExportSource, runtime: Runtime, auto: str) -> str:
    """A translation, or how a text goes on."""
    translates = source.blueprint.task == "translation"
    if runtime == "onnxruntime":
        if translates:
            return 'print(translate(Path(), ["a text"], Search())[0])\n'
        return dedent(
            """\
            words = Vocabulary(Path(), "target")
            prompt = np.array([[*words.begin, *words.encode("a text")]])
            (tokens,) = continue_text(Decoder(Path()), prompt, {count}, words.size, words.first)
            print(words.decode(tokens.tolist()))
            """
        ).format(count=_count(source))
    if runtime == "transformers":
        body = HUB.format(auto=auto) + HUB_TOKENIZER
        if translates:
            return body + dedent(
                """\
                inputs = tokenizer(["a text"], return_tensors="pt", padding=True)
                tokens = model.generate(**inputs)
                print(tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])
                """
            )
        return body + dedent(
            """\
            prompt = [{begin}*tokenizer("a text", add_special_tokens=False)["input_ids"]]
            inputs = torch.tensor([prompt])
            mask = torch.ones_like(inputs)
            tokens = model.generate(
                inputs,
                attention_mask=mask,
                do_sample=False,
                eos_token_id=None,
                max_new_tokens={count},
            )
            print(tokenizer.decode(tokens[0, len(prompt) :], skip_special_tokens=True))
            """
        ).format(begin=_begin(source), count=_count(source))
    open_words, numbers, text = _vocabulary(source)
    if translates:
        call = f"tokens = translate(load_network(), {numbers})\n"
    else:
        call = (
            f"prompt = [{_begin(source)}*{numbers}]\n"
            f"tokens = continue_text(load_network(), prompt, count={_count(source)})\n"
        )
    return f"{open_words}{call}print({text})\n"


def _begin(source: ExportSource) -> str:
    """The marks that stand before a text that is to be continued, each with a comma."""
    return "".join(f"{mark}, " for mark in source.preprocessing.facts.get("begin", [BOS]))


def _count(source: ExportSource) -> int:
    """Tokens to write: 40, or half of what a short network reads."""
    return min(40, source.blueprint.settings.max_length // 2)


def _vocabulary(source: ExportSource) -> tuple[str, str, str]:
    """Lines that open vocabularies, the numbers of a text, and the text of `tokens`."""
    facts = source.preprocessing.facts
    read, write = facts["source"], facts["target"]
    if facts["kind"] == "sentencepiece":
        same = read == write
        lines = f'source = SentencePieceProcessor(model_file="{read}")\n'
        lines += "" if same else f'target = SentencePieceProcessor(model_file="{write}")\n'
        return lines, 'source.encode("a text")', f"{'source' if same else 'target'}.decode(tokens)"
    if facts["kind"] == CHECKPOINT:
        lines = f'tokenizer = Tokenizer.from_file("{read}")\n'
        numbers = 'tokenizer.encode("a text", add_special_tokens=False).ids'
        return lines, numbers, "tokenizer.decode(tokens)"
    lines = 'source, target = (json.loads(Path(name).read_text("utf-8")) for name in ' + (
        f'("{read}", "{write}"))\n'
    )
    lines += "numbers = {word: number for number, word in enumerate(source)}\n"
    numbers = f'[numbers.get(word, {UNKNOWN}) for word in "a text".split()]'
    text = f'" ".join(target[token] for token in tokens if token > {len(MARKS) - 2})'
    return lines, numbers, text
