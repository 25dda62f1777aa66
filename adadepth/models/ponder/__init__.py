"""Models that halt by PonderNet's distribution over steps: an ALBERT and a recurrent cell."""
