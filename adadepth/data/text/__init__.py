"""Text sources: local files, table columns, data sets on the hub, documents, sentences, and tokenizers."""
