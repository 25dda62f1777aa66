"""Generated examples, drawn anew in every epoch, for which the depth that a unit needs is known."""
