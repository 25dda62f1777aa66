"""Plain ALBERT with the interface of `DepthModel`: the fixed-depth baseline."""
