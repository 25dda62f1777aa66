"""PonderALBERT: one shared layer, applied until the sequence's halting distribution lets it out."""
