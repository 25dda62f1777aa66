"""Budgets of depth: a controller that holds the mean depth of training at a target, independent of any model."""
