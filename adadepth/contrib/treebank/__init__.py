"""Mean depth by linguistic class (e.g. part of speech): `mode=evaluate` of a token-level model on a treebank."""
