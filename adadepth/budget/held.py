"""When a budget counts as held."""

TOLERANCE = 0.05  # a share of the target


def is_held(measured: float, target: float, *, is_ceiling: bool = False) -> bool:
    """Whether a measured depth is the target's to within the tolerance; under a ceiling, or below it."""
    error = measured - target
    return (error if is_ceiling else abs(error)) <= TOLERANCE * target
