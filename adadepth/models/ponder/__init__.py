"""Models with PonderNet's halting distribution, over the steps of a shared ALBERT block or of a recurrent cell."""
