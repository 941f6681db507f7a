"""A translation network."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from supernet.export.template.decoding import BOS, EOS, PAD, State, placed
from supernet.export.template.sizes import (
    CUT_SOURCE,
    CUT_TARGET,
    CUT_VOCABULARY,
    DECODER_WIDTH,
    EMBEDDING_WIDTH,
    ENCODER_WIDTH,
    FEWER_WORDS,
    LEARNED_POSITIONS,
    MAX_LENGTH,
    NUM_WORDS,
    POSITIONS,
    SHARED_EMBEDDING,
    SOURCE_VOCABULARY,
    TARGET_VOCABULARY,
    VOCABULARY,
)
from supernet.export.template.stacks import Decoder, Encoder


class Network(nn.Module):
    """An encoder and a decoder over tokens; the target's embeddings are the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        if SHARED_EMBEDDING:
            self.embedding = nn.Embedding(VOCABULARY, EMBEDDING_WIDTH)
        else:
            self.source_embedding = nn.Embedding(SOURCE_VOCABULARY, ENCODER_WIDTH)
            self.target_embedding = nn.Embedding(TARGET_VOCABULARY, DECODER_WIDTH)
        if LEARNED_POSITIONS:
            self.encoder_positions = nn.Parameter(torch.zeros(MAX_LENGTH, ENCODER_WIDTH))
            self.decoder_positions = nn.Parameter(torch.zeros(MAX_LENGTH, DECODER_WIDTH))
        self.encoder = Encoder()
        self.decoder = Decoder()

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Sources ``(B, M)``, targets from the begin mark on ``(B, N)`` -> logits ``(B, N, V)``."""
        return self.step(target, self.start(source))[0]

    def start(self, source: Tensor) -> State:
        """Read sources ``(B, M)``, each with its end mark, then padding."""
        return self.begin(self.encode(source), source != PAD)

    def encode(self, source: Tensor) -> Tensor:
        """Sources ``(B, M)`` -> the encoder's output ``(B, M, D)``."""
        x = self.embedding(source) if SHARED_EMBEDDING else self.source_embedding(source)
        if CUT_SOURCE:
            x = x[..., :ENCODER_WIDTH]
        x = placed(x, 0)
        if LEARNED_POSITIONS:
            x = x + self.encoder_positions[: x.shape[1]]
        return self.encoder(x, source != PAD)

    def begin(self, encoded: Tensor, real: Tensor) -> State:
        """The state before the first target token; `real` ``(B, M)`` is False at padding."""
        memories = self.decoder.memories(encoded, real)
        return State(0, [None] * len(memories), memories)

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """New target tokens ``(B, N)`` -> logits of what follows each ``(B, N, V)``, next state."""
        start, end = state.position, state.position + tokens.shape[1]
        table = self.embedding if SHARED_EMBEDDING else self.target_embedding
        x = table(tokens)
        if CUT_TARGET:
            x = x[..., :DECODER_WIDTH]
        x = placed(x, start)
        if LEARNED_POSITIONS:
            x = x + self.decoder_positions[start:end]
        if POSITIONS:
            positions = torch.arange(start, end, device=x.device)
        x, layers = self.decoder(x, state.layers, state.memories, positions)
        weight = table.weight
        if CUT_VOCABULARY:
            weight = weight[:TARGET_VOCABULARY]
        if CUT_TARGET:
            weight = weight[:, :DECODER_WIDTH]
        return F.linear(x, weight), State(end, layers, state.memories)


@torch.inference_mode()
def translate(
    network: Network, source: list[int], beam_size: int = 4, length_penalty: float = 0.6
) -> list[int]:
    """The best translation of one text, token by token.

    Args:
        network: from `load_network`.
        source: its tokens, without marks.
        beam_size: translations that are followed at once; 1 is greedy.
        length_penalty: log-probabilities are divided by length to this power.

    Returns:
        Target tokens, without marks.
    """
    device = next(network.parameters()).device
    state = network.start(torch.tensor([[*source, EOS]], device=device))
    state = state.rows(torch.zeros(beam_size, dtype=torch.int64, device=device))
    longest = min(int(1.2 * (len(source) + 1)) + 10, MAX_LENGTH)  # end mark included
    tokens = torch.full((beam_size, 1), BOS, device=device)  # (beams, tokens so far)
    scores = torch.full((beam_size,), -torch.inf, device=device)
    scores[0] = 0.0  # all beams are the same at first, so only one of them counts
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        logits, state = network.step(tokens[:, -1:], state)
        if FEWER_WORDS:
            logits = logits[..., :NUM_WORDS]  # tokens that the tokenizer knows
        following = logits[:, -1].float().log_softmax(dim=-1)  # (beams, V)
        ends = following[:, EOS].clone()
        following[:, PAD] = -torch.inf
        if length == 1:
            following[:, EOS] = -torch.inf  # no empty translation
        if length == longest:
            following[:] = -torch.inf
            following[:, EOS] = ends
        total = (scores[:, None] + following).flatten()
        best = total.topk(min(2 * beam_size, len(total)))
        beam, token = best.indices // following.shape[1], best.indices % following.shape[1]
        for rank in range(beam_size):
            if token[rank] == EOS and best.values[rank].isfinite():
                score = float(best.values[rank]) / length**length_penalty
                finished.append((score, tokens[beam[rank], 1:].tolist()))
        order = (token == EOS).to(torch.int8).argsort(stable=True)[:beam_size]  # ended ones last
        beam, token = beam[order], token[order]
        scores = best.values[order].masked_fill(token == EOS, -torch.inf)
        if len(finished) >= beam_size or not scores.isfinite().any():
            break
        tokens, state = torch.cat((tokens[beam], token[:, None]), dim=1), state.rows(beam)
    return max(finished, key=lambda one: one[0])[1]


def outputs(network: Network, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The logits for recorded inputs: from one pass, and token by token."""
    state, parts = network.start(inputs["source"]), []
    for tokens in inputs["target"].split(1, dim=1):
        logits, state = network.step(tokens, state)
        parts.append(logits)
    return [network(inputs["source"], inputs["target"]), torch.cat(parts, dim=1)]
