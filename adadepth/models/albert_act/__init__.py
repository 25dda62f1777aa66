"""ACT-ALBERT: one shared layer, applied to every token until the token halts."""
