"""Interactive web page on which a visitor changes the depth of trained models."""
