"""`mode=estimate`: memory, operations and days of a training before anything is prepared or allocated."""
