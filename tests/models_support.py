"""Small models and batches."""

import torch

from adadepth import (
    AlbertActConfig,
    MultiExitAlbertConfig,
    MultiExitAlbertForSequenceClassification,
    PonderAlbertConfig,
    PonderAlbertForSequenceClassification,
)

SMALL = {
    "vocab_size": 120,
    "embedding_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
}


def make_small_config(**changes) -> AlbertActConfig:
    """Return the configuration of a model small enough for a plain loop."""
    return AlbertActConfig(**(SMALL | changes))


def spread_depths(model, scale: float = 30.0, bias: float = -1.5) -> None:
    """Let the halting unit decide differently for different tokens; at initialisation all get one half."""
    unit = model.get_submodule("albert" if hasattr(model, "albert") else "").encoder.albert_layer.act.dense
    with torch.no_grad():
        unit.weight.mul_(scale)
        unit.bias.fill_(bias)


def make_padded_batch(lengths=(10, 7, 1), width=12, vocab_size=120, seed=0):
    """Return ids, mask and segments of sequences of the given lengths, padded to one width."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, vocab_size, (len(lengths), width), generator=generator)
    mask = (torch.arange(width) < torch.tensor(lengths).unsqueeze(1)).long()
    segments = (torch.arange(width) >= torch.tensor(lengths).unsqueeze(1) // 2).long() * mask
    return {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": segments}


# Large enough for the states to move at every step.
MOVING = SMALL | {"initializer_range": 0.3}


def make_small_ponder(**changes) -> PonderAlbertForSequenceClassification:
    """Return a small PonderALBERT in evaluation mode, whose steps and texts differ in prediction and halting."""
    torch.manual_seed(0)
    model = PonderAlbertForSequenceClassification(PonderAlbertConfig(**(MOVING | changes))).eval()
    with torch.no_grad():
        model.ponder[-1].weight.mul_(0.25)
        model.ponder[-1].bias.fill_(-2.0)
    return model


def make_small_multi_exit(**changes) -> MultiExitAlbertForSequenceClassification:
    """Return a small multi-exit ALBERT in evaluation mode, whose steps and texts differ in prediction."""
    torch.manual_seed(0)
    return MultiExitAlbertForSequenceClassification(MultiExitAlbertConfig(**(MOVING | changes))).eval()


def make_small_act(model_class, **changes):
    """Return a small ACT-ALBERT of a class in evaluation mode, whose tokens halt after different updates."""
    torch.manual_seed(0)
    model = model_class(make_small_config(initializer_range=0.3, **changes)).eval()
    spread_depths(model, scale=3.0)
    return model
