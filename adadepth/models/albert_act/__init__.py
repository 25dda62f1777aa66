"""ACT-ALBERT: one shared ALBERT layer, applied to every token until that token halts."""
