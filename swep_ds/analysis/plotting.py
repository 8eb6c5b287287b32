"""matplotlib for figures that are written to files: no display, nothing kept open; and how lines are told apart."""

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, without the yellow that is pale on
# white; marks tell the lines apart in print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKS = "osD^vPX*"


def pyplot():
    """`matplotlib.pyplot` on the file-only backend. Not imported above: it takes half a second."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
