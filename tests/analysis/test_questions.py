"""Which questions belong together."""

from swep_ds.analysis.questions import Questions, note_on_shared_ids
from swep_ds.data.example import Example


def test_questions_belong_to_their_article_if_there_are_20_and_to_their_paragraph_if_not():
    def clusters(articles: int) -> list[int]:
        examples = [
            Example(f"{a}.{p}.{q}", "?", f"paragraph {p} of {a}", ("x",), None, f"article {a}")
            for a in range(articles)
            for p in range(2)
            for q in range(3)
        ]
        return Questions.of(examples).clusters.tolist()

    assert clusters(20) == [number for number in range(20) for _ in range(6)]
    assert clusters(19) == [number for number in range(38) for _ in range(3)]


def test_sets_that_share_most_of_their_questions_are_named():
    ids = {"de": ["a", "b", "c"], "other": ["c", "x", "y", "z"], "es": ["b", "c", "d", "e", "f"], "none": []}
    [note] = note_on_shared_ids(ids)
    assert note.startswith("de, es share question ids. ")
    assert note_on_shared_ids({name: ids[name] for name in ("de", "other", "none")}) == []
