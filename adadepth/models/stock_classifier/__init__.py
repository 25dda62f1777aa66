"""Classifiers of transformers' own making under this project's contract: the baselines of one depth."""
