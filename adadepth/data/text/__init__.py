"""Text as it is found: files, columns, the hub, documents, sentences, and the tokenizers that read it."""
