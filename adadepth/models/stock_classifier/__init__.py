"""Unmodified classifiers of transformers with the interface of `DepthModel`: fixed-depth baselines."""
