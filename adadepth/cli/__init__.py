"""The command line: what was asked for, put together, explained and checked before anything starts."""
