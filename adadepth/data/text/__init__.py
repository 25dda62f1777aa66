"""Text sources: files, columns, the hub, documents, sentences, and tokenizers."""
