"""The recurrent cell of the PonderNet paper: a fixed input, read again at every step."""
