"""matplotlib for figures that are written to files: no display, nothing kept open."""


def pyplot():
    """`matplotlib.pyplot` on the file-only backend. Not imported above: it takes half a second."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt
