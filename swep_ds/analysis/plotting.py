"""matplotlib for figures that are written to files, and how lines are told apart."""

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, without the yellow that is pale on
# white; marks tell the lines apart in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX*"


def figure(**options):
    """A `matplotlib.figure.Figure`, which no list of open ones holds. Imported here: it takes a third of a second."""
    from matplotlib.figure import Figure

    return Figure(**options)
