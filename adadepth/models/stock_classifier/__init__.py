"""Unmodified transformers classifiers with the `DepthModel` interface: fixed-depth baselines."""
