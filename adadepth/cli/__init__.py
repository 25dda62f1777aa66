"""The command line: reads it, composes and checks the configuration, and words its errors and help."""
