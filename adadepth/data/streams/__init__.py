"""Running text as contiguous streams for models with memory."""
