"""Metrics of depth and quality, computed from traces and predictions; draws nothing."""
