"""Types of arguments that the kernel scripts share; argparse turns their errors into one line and exit code 2."""

from argparse import ArgumentTypeError

LENGTH = 512
"""Tokens of a sample in a benchmark."""


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"must be an integer; got {text!r}") from None


def width(text: str) -> int:
    """An embedding width d."""
    d = _integer(text)
    if not 4 <= d <= 8192 or d % 4:
        raise ArgumentTypeError(f"must be a multiple of 4 from 4 to 8192; got {d}")
    return d


def tokens(text: str) -> int:
    """A number of tokens that fills whole samples."""
    number = _integer(text)
    if number < 1 or (number > LENGTH and number % LENGTH):
        raise ArgumentTypeError(f"must be from 1 to {LENGTH}, or a multiple of {LENGTH}; got {number}")
    return number
