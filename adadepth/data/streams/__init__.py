"""Running text for language models: contiguous streams for models with memory, or blocks of equal length."""
