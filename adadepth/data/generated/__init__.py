"""Generated examples, drawn afresh in every epoch, of which it is known how much computing a unit needs."""
