"""A page on which one moves the depth of a trained model: asking it, showing what it says, and the page itself."""
