"""Tasks of lm-evaluation-harness, scored under every exit rule of a causal language model."""
