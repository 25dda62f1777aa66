"""Imports the classes of this model from the package adadepth."""

try:
    import adadepth
except ImportError as error:
    raise ImportError(
        "this model needs the package adadepth; install it from a clone or a wheel, then `import adadepth`"
    ) from error


def __getattr__(name):
    return getattr(adadepth, name)
