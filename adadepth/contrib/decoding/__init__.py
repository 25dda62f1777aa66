"""Faster text generation: continuous batching of many texts, and self-speculative decoding of a single text.

This package provides `adadepth.decode_texts` and `adadepth.self_speculation` through the entry-point group
`adadepth.names`. Continuous batching is an experiment: docs/engines.md names engines that serve exported models.
"""
