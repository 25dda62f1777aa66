"""Metrics of depth and quality, computed from depth traces and predictions, without any drawing."""
