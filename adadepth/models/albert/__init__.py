"""Plain ALBERT with the members of `DepthModel`: the fixed-depth baseline."""
