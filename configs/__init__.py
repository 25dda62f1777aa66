"""The shipped configurations; this file makes them a package, so that a wheel can carry them."""
