"""Metrics of depth and quality, computed from traces and predictions, without any drawing."""
