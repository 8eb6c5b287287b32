"""The version of this package, for all that must not import its names: a checkout need not be installed."""

__version__ = "0.1.0"
