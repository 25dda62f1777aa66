"""Small PAR Transformer-XLs with nonzero states, and segments for them."""

from __future__ import annotations

import torch

from adadepth import ParXLConfig, ParXLForCausalLM, ParXLSupernet

VOCABULARY = 40
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "memory_length": 8,
    "hidden_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
# Settings of the original code.
ORIGINAL = {
    "attention_scale": "linear",
    "attention_out_act": "relu",
    "share_position_bias": False,
    "projection_bias": True,
    "softmax_bias": True,
    "layer_norm_eps": 1e-3,
}
SPREAD = [[0.3, -0.2, 0.1], [-0.5, 0.9, 0.0], [0.2, 0.1, 0.8], [1.0, -1.0, 0.4]]


def perturb_weights(model, seed=0):
    """Add noise to every parameter that is initialised with zeros or ones."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def build_supernet(gates=SPREAD, **changes) -> ParXLSupernet:
    """Build a supernet in evaluation mode with gates that are not uniform."""
    torch.manual_seed(0)
    model = perturb_weights(ParXLSupernet(ParXLConfig(**(SMALL | changes))))
    with torch.no_grad():
        model.gates.copy_(torch.tensor(gates))
    return model


def build_network(architecture="sfs-", **changes) -> ParXLForCausalLM:
    """Build a network in evaluation mode."""
    torch.manual_seed(0)
    return perturb_weights(ParXLForCausalLM(ParXLConfig(**(SMALL | {"architecture": architecture} | changes))))


def draw_words(rows=2, length=12, seed=0):
    """Draw ids (B, T)."""
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def read_in_segments(model, ids, lengths, **options):
    """Return log-probabilities (B, T, V) of a text read in segments, each with the memory of those before."""
    memory, parts = None, []
    for segment in ids.split(lengths, dim=1):
        outputs = model(segment, memory=memory, **options)
        memory = outputs.memory
        parts.append(outputs.logits)
    return torch.cat(parts, dim=1)
