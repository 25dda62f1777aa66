"""Small base models of every kind, and batches for them."""

from __future__ import annotations

import torch
from transformers import (
    AlbertConfig,
    AutoModel,
    BartConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    PreTrainedConfig,
    RobertaConfig,
    T5Config,
)

from adadepth.models import AdaLayersConfig, AdaLayersForSequenceClassification

VOCABULARY, WIDTH, DEPTH = 120, 32, 4
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
DISENTANGLED = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "conv_kernel_size": 3,
    "type_vocab_size": 0,
}
BASES: dict[str, PreTrainedConfig] = {
    "bert": BertConfig(**SHAPE),
    "roberta": RobertaConfig(**SHAPE, type_vocab_size=1, pad_token_id=1),
    "albert": AlbertConfig(**SHAPE, embedding_size=16),
    "albert_groups": AlbertConfig(**SHAPE, embedding_size=16, num_hidden_groups=2),
    "deberta": DebertaV2Config(**SHAPE, **DISENTANGLED),
    "electra": ElectraConfig(**SHAPE, embedding_size=16),
    "distilbert": DistilBertConfig(
        vocab_size=VOCABULARY, dim=WIDTH, n_layers=DEPTH, n_heads=4, hidden_dim=48, max_position_embeddings=40
    ),
    "bart": BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=DEPTH,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_position_embeddings=40,
        init_std=0.2,
    ),
    "t5": T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        num_layers=DEPTH,
        num_decoder_layers=1,
        num_heads=4,
        d_kv=8,
        d_ff=48,
        initializer_factor=2.0,
    ),
}

# Heads compared in docs/adalayers.md.
VARIANTS: dict[str, dict] = {
    "adalayers": {},
    "depth penalty": {"lambda_distribution_depth": 0.5, "lambda_distribution_entropy": 0.1},
    "one layer": {"pick_one_layer_only": 2},
    "last layer": {"pick_one_layer_only": -1},
    "uniform": {"freeze_distribution": True},
    "scalar mix": {"mix": "scalar", "alpha_distribution": 1.0},
    "linear scalar mix": {"mix": "scalar", "alpha_distribution": 1.0, "head": "linear"},
    "linear probe": {"mix": "scalar", "head": "linear", "pick_one_layer_only": -1},
    "projected probe": {"head": "linear"},
    "positions": {"add_pos_embeddings": True},
    "fine-tuning": {"mix": "scalar", "head": "linear", "pick_one_layer_only": -1, "freeze_base_model": False},
    "fine-tuning to layer 2": {"pick_one_layer_only": 2, "freeze_base_model": False},
}
HEAD = {"project_dim": 16, "attention_heads_num": 4, "dim_feedforward": 24, "attention_dropout_prob": None}


def save_base(kind, folder, seed=0):
    """Save a random base of a kind in a folder, and return its path."""
    torch.manual_seed(seed)
    AutoModel.from_config(BASES[kind]).save_pretrained(folder)
    return str(folder)


def draw_texts(lengths=(9, 6, 2), width=11, seed=0):
    """Draw ids and mask of texts of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, VOCABULARY, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    return {"input_ids": ids * mask + (1 - mask), "attention_mask": mask}


def set_scores(model, scores):
    """Set the scores of the layers."""
    with torch.no_grad():
        model.distribution.copy_(torch.as_tensor(scores, dtype=torch.float32))


SCORES = [1.0, 1.2, 0.95, 0.6, 0.7]


def build_mixture(**fields):
    """Build a head on four random blocks, with different weights; alpha is 10."""
    base = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=4, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16,
    )  # fmt: skip
    torch.manual_seed(0)
    config = AdaLayersConfig(base_config=base, project_dim=8, attention_heads_num=2, attention_dropout_prob=0, **fields)
    model = AdaLayersForSequenceClassification(config)
    scores = torch.tensor(SCORES if config.include_embeddings else SCORES[1:])
    model.distribution.data.copy_(scores)
    return model.train()
