"""Depth as something a user sets: a controller holds the mean depth of training at a target; knows no model."""
