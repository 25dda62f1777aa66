"""Depth by linguistic class: `mode=evaluate` of a token-level model on a treebank."""
