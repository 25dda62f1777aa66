"""Sentences of a treebank as sequences of tokens, each token with the word that it is a piece of."""
