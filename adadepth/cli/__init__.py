"""Command line: parses it, composes and checks the configuration, and formats errors and help."""
