"""Depth budgets: a model-independent controller that holds the mean depth of training at a target."""
