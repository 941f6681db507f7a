"""A language model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.decoder import PAD, Decoder, State
from supernet.export.template.layers import (
    embedding_norm_of,
    learned_positions,
    placed,
    scaled,
    token_types,
)


class Network(nn.Module):
    """A decoder over tokens; its embeddings are the output layer too, unless it has its own."""

    def __init__(self, description: dict[str, Any]) -> None:
        super().__init__()
        self.model = model = description["model"]
        stack, words = description["architecture"]["decoder"], model["input"]["vocab_size"]
        self.max_length, self.memory_length = model["max_length"], stack.get("memory_length", 0)
        self.num_words = description.get("num_words") or words  # that the tokenizer knows
        self.padding = description.get("padding", PAD)  # never written; None: all are words
        self.embedding = nn.Embedding(words, stack["embed_dim"])
        self.decoder_positions = learned_positions(model, stack["embed_dim"])
        self.decoder_types = token_types(model, stack["embed_dim"])
        self.decoder_embedding_norm = embedding_norm_of(model, stack["embed_dim"])
        if not model["tied_output"]:
            self.output = nn.Linear(stack["embed_dim"], words, bias=False)
        self.decoder = Decoder(description)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``(B, N)``, from the begin mark on -> logits of what follows ``(B, N, V)``."""
        return self.step(tokens, self.start())[0]

    def start(self) -> State:
        """The state before the first token of a text."""
        nothing = [None] * len(self.decoder.layers)
        return State(0, nothing, nothing, self.memory_length)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """New tokens ``(B, N)`` -> logits of what follows each ``(B, N, V)``, and next state."""
        x, state = self.read(tokens, state)
        return self.tell(x), state

    def read(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """The same, but for what the output layer reads ``(B, N, D)`` in place of logits."""
        start, end = state.position, state.position + tokens.shape[1]
        x = scaled(self.embedding(tokens), self.model)
        x = placed(x, start, self.model, self.decoder_positions, self.decoder_types)
        x, positions = self.decoder_embedding_norm(x), torch.arange(start, end, device=x.device)
        x, layers = self.decoder(x, state.layers, state.memories, positions)
        return x, replace(state, position=end, layers=layers)

    def tell(self, x: Tensor) -> Tensor:
        """What `read` gives -> logits ``(B, N, V)``."""
        tied = self.model["tied_output"]
        return F.linear(x, self.embedding.weight) if tied else self.output(x)

    def remember(self, tokens: Tensor, state: State) -> State:
        """Read earlier tokens ``(B, C)``; what follows sees the last of them."""
        for part in tokens[:, -self.memory_length :].split(self.max_length, dim=1):
            state = self.step(part, state)[1].next_segment()
        return state


@torch.inference_mode()
def continue_text(
    network: Network, tokens: list[int], count: int, temperature: float = 0.0, seed: int = 0
) -> list[int]:
    """The next `count` tokens of a text, which begins with its begin mark, if it has one.

    Of a text that is longer than the network reads at once the beginning is remembered, where the
    network has a memory.

    Args:
        network: from `load_network`.
        tokens: of the text so far, at least one.
        count: tokens to write.
        temperature: 0 takes the likeliest token each time; 1 draws by the probabilities.
        seed: of the draw.
    """
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    state, new, written = network.start(), tokens, []
    if network.memory_length and len(tokens) > network.max_length:
        earlier, new = tokens[: -network.max_length], tokens[-network.max_length :]
        state = network.remember(torch.tensor([earlier], device=device), state)
    for _ in range(count):
        if network.memory_length and state.position + len(new) > network.max_length:
            state = state.next_segment()
        logits, state = network.step(torch.tensor([new], device=device), state)
        following = logits[0, -1, : network.num_words].float()
        if network.padding is not None:
            following[network.padding] = -torch.inf
        if temperature > 0.0:
            chances = (following / temperature).softmax(dim=-1)
            new = [int(torch.multinomial(chances, 1, generator=generator))]
        else:
            new = [int(following.argmax())]
        written += new
    return written


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """The logits for recorded inputs: from one pass, and token by token."""
    state, parts = network.start(), []
    if "context" in inputs:
        state = network.remember(inputs["context"], state)
    whole = network.step(inputs["tokens"], state)[0]
    for tokens in inputs["tokens"].split(1, dim=1):
        logits, state = network.step(tokens, state)
        parts.append(logits)
    return [{"logits": found} for found in (whole, torch.cat(parts, dim=1))]
