"""Parameter shapes of the original PonderALBERT classifier, and truncations of the halting distribution."""

from adadepth.models.ponder.reference import compute_masses, normalise_masses


def build_reference_layout(vocab, positions, embedding, hidden, inner, classes, head=128):
    """Return names and shapes of the reference classifier's parameters."""
    shapes = {
        "embeddings.word_embeddings.weight": (vocab, embedding),
        "embeddings.position_embeddings.weight": (positions, embedding),
        "embeddings.token_type_embeddings.weight": (2, embedding),
        "embeddings.LayerNorm.weight": (embedding,),
        "embeddings.LayerNorm.bias": (embedding,),
        "embedding_hidden_mapping_in.weight": (hidden, embedding),
        "embedding_hidden_mapping_in.bias": (hidden,),
        "albert_layer.attention.LayerNorm.weight": (hidden,),
        "albert_layer.attention.LayerNorm.bias": (hidden,),
        "albert_layer.ffn.weight": (inner, hidden),
        "albert_layer.ffn.bias": (inner,),
        "albert_layer.ffn_output.weight": (hidden, inner),
        "albert_layer.ffn_output.bias": (hidden,),
        "albert_layer.full_layer_layer_norm.weight": (hidden,),
        "albert_layer.full_layer_layer_norm.bias": (hidden,),
        "classifier.0.weight": (head, hidden),
        "classifier.0.bias": (head,),
        "classifier.2.weight": (classes, head),
        "classifier.2.bias": (classes,),
        "ponder.0.weight": (head, hidden),
        "ponder.0.bias": (head,),
        "ponder.2.weight": (1, head),
        "ponder.2.bias": (1,),
    }
    for part in ("query", "key", "value", "dense"):
        shapes[f"albert_layer.attention.{part}.weight"] = (hidden, hidden)
        shapes[f"albert_layer.attention.{part}.bias"] = (hidden,)
    return shapes


def compute_plain_pmf(lambdas, truncation):
    """Return p_n of one row as floats, in double precision."""
    pmf, remaining = compute_masses(lambdas)
    if truncation == "renormalise":
        return normalise_masses(pmf, remaining)
    if truncation == "leftover":
        pmf[-1] += remaining
    for step in range(len(pmf)) if truncation == "palbert" else ():
        if sum(pmf[:step]) > 0.95:  # `current_cdf` of palbert_fast.py
            pmf[step] = 0.05 / len(pmf)
    return pmf
