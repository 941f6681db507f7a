"""A language model."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.decoding import PAD, State, placed
from supernet.export.template.sizes import (
    DECODER_WIDTH,
    FEWER_WORDS,
    LEARNED_POSITIONS,
    MAX_LENGTH,
    MEMORY,
    MEMORY_LENGTH,
    NUM_WORDS,
    POSITIONS,
    VOCABULARY,
)
from supernet.export.template.stacks import Decoder


class Network(nn.Module):
    """A decoder over tokens; its embeddings are the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, DECODER_WIDTH)
        if LEARNED_POSITIONS:
            self.decoder_positions = nn.Parameter(torch.zeros(MAX_LENGTH, DECODER_WIDTH))
        self.decoder = Decoder()

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens ``(B, N)``, from the begin mark on -> logits of what follows ``(B, N, V)``."""
        return self.step(tokens, self.start())[0]

    def start(self) -> State:
        """The state before the first token of a text."""
        return State(0, [None] * len(self.decoder.layers))

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """New tokens ``(B, N)`` -> logits of what follows each ``(B, N, V)``, and next state."""
        start, end = state.position, state.position + tokens.shape[1]
        x = placed(self.embedding(tokens), start)
        if LEARNED_POSITIONS:
            x = x + self.decoder_positions[start:end]
        if POSITIONS:
            positions = torch.arange(start, end, device=x.device)
        x, layers = self.decoder(x, state.layers, positions)
        return F.linear(x, self.embedding.weight), State(end, layers)

    if MEMORY:

        def remember(self, tokens: Tensor, state: State) -> State:
            """Read earlier tokens ``(B, C)``; what follows sees the last of them."""
            for part in tokens[:, -MEMORY_LENGTH:].split(MAX_LENGTH, dim=1):
                state = self.step(part, state)[1].next_segment()
            return state


@torch.inference_mode()
def continue_text(
    network: Network, tokens: list[int], count: int, temperature: float = 0.0, seed: int = 0
) -> list[int]:
    """The next `count` tokens of a text, which begins with the begin mark 1.

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
    for _ in range(count):
        if MEMORY and state.position + len(new) > MAX_LENGTH:
            state = state.next_segment()
        logits, state = network.step(torch.tensor([new], device=device), state)
        following = logits[0, -1].float()
        if FEWER_WORDS:
            following = following[:NUM_WORDS]  # tokens that the tokenizer knows
        following[PAD] = -torch.inf
        if temperature > 0.0:
            chances = (following / temperature).softmax(dim=-1)
            new = [int(torch.multinomial(chances, 1, generator=generator))]
        else:
            new = [int(following.argmax())]
        written += new
    return written


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The logits for recorded inputs: from one pass, and token by token."""
    state, parts = network.start(), []
    if MEMORY:
        state = network.remember(inputs["context"], state)
    whole = network.step(inputs["tokens"], state)[0]
    for tokens in inputs["tokens"].split(1, dim=1):
        logits, state = network.step(tokens, state)
        parts.append(logits)
    return [whole, torch.cat(parts, dim=1)]
