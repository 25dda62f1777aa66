"""Inference of looped language models: continuous batching of many texts, and self-speculative decoding of one.

`adadepth.decode_texts` and `adadepth.self_speculation` come from here, by the entry-point group `adadepth.names`.
"""
