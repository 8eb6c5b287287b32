"""What a decoder's best answers are, as an evaluation reads them."""

from swep_ds.evaluation.evaluate import Decoder, Predictions


def best_texts(decoder: Decoder) -> dict[str, str]:
    return Predictions(decoder.n_best(1), {}).texts


def best_probabilities(decoder: Decoder) -> dict[str, float]:
    return Predictions(decoder.n_best(1), {}).confidences
