"""Halting: allocation and tracing of depth, in pure tensor code without models or loggers."""
