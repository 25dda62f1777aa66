"""Interactive web demo in which a visitor changes the computation depth of trained models."""
