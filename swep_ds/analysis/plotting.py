"""What the figures that are written to files share: matplotlib without a window, colours, marks, files."""

from pathlib import Path

from swep_ds.common.errors import InputError

# The palette of Okabe and Ito, which readers with any colour vision can tell apart, without its yellow, which is pale
# on white; the marks tell lines apart in black and white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX*"


def new_figure(**options):
    """A `matplotlib.figure.Figure` outside pyplot. The import is lazy because it takes a third of a second."""
    from matplotlib.figure import Figure

    return Figure(**options)


def save(figure, folder: Path, name: str) -> list[Path]:
    """Writes the figure as `<name>.png` and `<name>.svg`; returns the files.

    Raises:
        InputError: the folder cannot be written to.
    """
    files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
    for file in files:
        try:
            figure.savefig(file, dpi=160)
        except OSError as error:
            raise InputError(f"{file}: cannot be written ({error.strerror})") from None
    return files
