"""Tables of labelled examples: their splits, labels and batches, by kind of task."""
