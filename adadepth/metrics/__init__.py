"""What is measured of depth and of quality: numbers only, nothing is drawn."""
