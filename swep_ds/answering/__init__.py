"""Asks question-answering models, those of the hub or of a folder.

from swep_ds.answering import QuestionAnswerer

answerer = QuestionAnswerer("deepset/roberta-base-squad2", null_threshold=0.0)
[reply] = answerer("Who founded it?", "It was founded in 1204 by an abbot.")
"""

from swep_ds.answering.answerer import QuestionAnswerer, Reply

__all__ = ["QuestionAnswerer", "Reply"]
