from dataclasses import replace
from functools import partial

from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.example import Example
from tests.support import bad_input

SETUP = {"model": "m", "samples": 8, "seed": 0}


def test_chunks_become_the_output_and_leave_nothing(tmp_path):
    first = Chunks(tmp_path / "new" / "out.txt", 3)
    assert first.take(SETUP) == [0, 1, 2]
    first.write(2, {"name": "Zürich 2"})
    (first.folder / ".000001.json.123").write_text('{"name"')  # cut off while being written
    del first  # and with it its lock
    chunks = Chunks(tmp_path / "new" / "out.txt", 3)
    assert chunks.take(SETUP) == [0, 1]
    for number in (1, 0):
        chunks.write(number, {"name": f"Zürich {number}"})
        assert not chunks.output.exists()
    file = chunks.folder / "000001.json"
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"rich 1", b"rich 3"))
    assert bad_input.refused(chunks.read, 1) == (
        f"{file}: damaged (000001.json has changed since it was written, or another version wrote it): delete it, and "
        "start the same command again"
    )
    file.write_bytes(whole)
    chunks.finish(chunks.read(number)["name"] + "\n" for number in range(3))
    assert chunks.output.read_text(encoding="utf-8") == "Zürich 0\nZürich 1\nZürich 2\n"
    assert list(chunks.output.parent.iterdir()) == [chunks.output]


def test_other_settings_another_process_and_an_output_that_exists_are_refused(tmp_path):
    new = partial(Chunks, tmp_path / "out.json", 3)
    chunks = new()
    chunks.take(SETUP)
    assert f"{chunks.output}: another process is writing it" in bad_input.refused(new().take, SETUP)
    del chunks
    said = bad_input.refused(new().take, SETUP | {"seed": 1})
    assert "seed 0 there, 1 here" in said
    assert "model" not in said
    (tmp_path / "mine.json.chunks").mkdir()
    (tmp_path / "mine.json.chunks" / "mine.txt").touch()
    assert "holds files of something else" in bad_input.refused(Chunks(tmp_path / "mine.json", 3).take, SETUP)
    (tmp_path / "out.json").write_text("")
    assert "exists already" in bad_input.refused(new)


def test_the_digest_of_examples_changes_with_each_and_with_their_order():
    examples = [Example(str(number), "Who?", f"Ann {number}.", ("Ann",), (0, 3), "Names") for number in range(5)]
    changes = {"id": "x", "question": "x", "context": "x", "span": (4, 5), "article": "x"}
    others = [[replace(examples[0], **{name: value}), *examples[1:]] for name, value in changes.items()]
    others += [examples[:4], examples[::-1], examples]
    assert len(set(map(digest, others))) == len(others)
    assert digest([replace(example, answers=()) for example in examples]) == digest(examples)  # labels are no question
