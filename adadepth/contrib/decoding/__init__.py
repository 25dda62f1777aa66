"""Fast generation with looped language models: continuous batching of many texts, self-speculative decoding of one.

This package provides `adadepth.decode_texts` and `adadepth.self_speculation` through the entry-point group
`adadepth.names`.
"""
