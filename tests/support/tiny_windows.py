"""Questions of several kinds, sizes that cut their contexts into many windows, and those windows as rows."""

import tempfile
from pathlib import Path

from swep_ds.data.features import Features, build_features
from swep_ds.data.windows import WindowSettings
from tests.support import tiny

SMALL = WindowSettings(max_length=24, doc_stride=5, max_query_length=8)
CONTEXT = " ".join(tiny.SENTENCES)
EXAMPLES = [
    tiny.example("Who founded the monastery?", CONTEXT, "an abbot from the northern valley", "q1"),
    tiny.example("Too big?", "  Not\u00a0too BIG;\n\nnot too small \U0001f600!", "not too small", "q2"),
    tiny.example("Which dose of which drug did the patients receive, and how often?", CONTEXT, "10 mg", "q3"),
    tiny.example("When?", CONTEXT, "1998", "q4"),
]


def build(examples, kind: str, sizes: WindowSettings, **options) -> tuple[Features, list[dict]]:
    """Features and their rows, through a new cache."""
    with tempfile.TemporaryDirectory() as folder:
        options = {"training": False, "cache_dir": Path(folder)} | options
        features = build_features(examples, tiny.TOKENIZERS[kind](), sizes, **options)
        return features, list(features.dataset)
