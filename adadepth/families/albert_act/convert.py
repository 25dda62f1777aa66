"""Reading the configurations that ACT-ALBERT was published with."""

from typing import Any

from adadepth.families.albert_act.recurrence import AlbertActConfig


def read_config(config: dict[str, Any]) -> AlbertActConfig:
    """The activation `gelu` of an original is the tanh form that TensorFlow trained with."""
    config.pop("num_hidden_groups", None)
    if config.get("hidden_act") == "gelu":
        config["hidden_act"] = "gelu_new"
    return AlbertActConfig(**config)
