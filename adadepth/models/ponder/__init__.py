"""PonderNet's halting distribution, over the steps of a shared ALBERT block and of a recurrent cell."""
