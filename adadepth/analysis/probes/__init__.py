"""What is known of a sentence by the state after each update."""
