"""Depth by linguistic class: `mode=evaluate` of a model of tokens on a treebank."""
