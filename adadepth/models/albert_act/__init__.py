"""ACT-ALBERT: one shared layer that is applied to every token until the token halts."""
