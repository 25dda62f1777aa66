"""Sizes of the models that tests fine-tune."""

SMALL = (
    "model.embedding_size=16", "model.hidden_size=32", "model.num_hidden_layers=4", "model.num_attention_heads=2",
    "model.intermediate_size=64", "model.max_position_embeddings=64", "dataset.sequence_length=32",
    "tokenizer.vocab_size=120",
)  # fmt: skip
