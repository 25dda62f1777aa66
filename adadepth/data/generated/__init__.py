"""Generated examples with a known required depth for each unit. New examples are drawn in every epoch."""
