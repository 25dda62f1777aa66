"""The sections of the report about a run as such: what it was, its losses, its budget, its seeds."""
