"""Running text as contiguous streams for models with memory, or as blocks of equal length."""
