"""Importers of the tokenizer classes that several families register with AutoTokenizer."""

from adadepth.models.registry import TokenizerClass


def import_albert_tokenizer() -> TokenizerClass:
    """Import and return the tokenizer of ALBERT."""
    from transformers.models.albert import AlbertTokenizer

    return AlbertTokenizer


def import_fast_tokenizer() -> TokenizerClass:
    """Import and return the fast tokenizer that a tokenizer.json describes completely."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast
