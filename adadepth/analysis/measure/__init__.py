"""What is measured of an evaluation: depth by class, quality, examples."""
