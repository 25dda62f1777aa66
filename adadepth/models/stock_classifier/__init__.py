"""Unmodified classifiers of transformers with the members of `DepthModel`: fixed-depth baselines."""
