"""Interactive page on which a visitor changes the depth of trained models."""
