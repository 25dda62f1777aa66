"""Early exit: encoders and decoders of transformers whose layers can be left early."""
