"""A file in chunks: only missing chunks are made again, and nothing of another setup is taken."""

from swep_ds.data.chunks import Chunks, digest
from swep_ds.data.example import Example
from tests.support import bad_input

SETUP = {"model": "m", "samples": 8, "seed": 0}


def test_chunks_become_the_output_and_leave_nothing(tmp_path):
    chunks = Chunks(tmp_path / "new" / "out.txt", 3)
    assert chunks.take(SETUP) == [0, 1, 2]
    chunks.begin(SETUP)
    for number in (2, 0, 1):
        chunks.write(number, {"name": f"Zürich {number}"})
        assert not chunks.output.exists()
    (chunks.folder / ".000002.json.123").write_text('{"name"')  # cut off while being written
    chunks.finish(chunks.read(number)["name"] + "\n" for number in range(3))
    assert [file.name for file in chunks.output.parent.iterdir()] == ["out.txt"]
    assert chunks.output.read_text(encoding="utf-8") == "Zürich 0\nZürich 1\nZürich 2\n"


def test_a_file_of_the_users_stays(tmp_path):
    chunks = Chunks(tmp_path / "out.txt", 1)
    chunks.take(SETUP)
    chunks.begin(SETUP)
    (chunks.folder / "notes.txt").write_text("mine")
    chunks.write(0, "done")
    chunks.finish(["done"])
    assert [file.name for file in chunks.folder.iterdir()] == ["notes.txt"]


def test_only_missing_chunks_are_made_again(tmp_path):
    first = Chunks(tmp_path / "out.json", 3)
    first.take(SETUP)
    first.begin(SETUP)
    first.write(1, [])
    (first.folder / ".000002.json.123").write_text('{"name"')  # cut off while being written
    del first  # and with it its lock
    assert Chunks(tmp_path / "out.json", 3).take(SETUP) == [0, 2]


def refused(chunks: Chunks, setup: dict) -> str:
    message = bad_input.refused(chunks.take, setup)
    assert str(chunks.output) in message
    return message


def test_other_settings_an_output_that_is_there_and_strange_files_are_refused(tmp_path):
    chunks = Chunks(tmp_path / "out.json", 3)
    chunks.take(SETUP)
    chunks.begin(SETUP)
    assert "another process is writing it" in refused(Chunks(tmp_path / "out.json", 3), SETUP)
    del chunks
    said = refused(Chunks(tmp_path / "out.json", 3), SETUP | {"seed": 1})
    assert "seed 0 there, 1 here" in said
    assert "model" not in said
    (tmp_path / "strange.json.chunks").mkdir()
    (tmp_path / "strange.json.chunks" / "thesis.tex").write_text("")
    assert "holds files of something else" in refused(Chunks(tmp_path / "strange.json", 3), SETUP)
    (tmp_path / "done.json").write_text("")
    assert "exists already" in refused(Chunks(tmp_path / "done.json", 3), SETUP)
    assert "cannot be written" in refused(Chunks(tmp_path / "done.json" / "out.json", 3), SETUP)


def test_the_digest_of_examples_changes_with_each_and_with_their_order():
    examples = [Example(str(number), "Who?", f"Ann {number}.", ("Ann",), (0, 3), "Names") for number in range(5)]
    digests = {digest(examples), digest(examples[:4]), digest(examples[::-1])}
    assert len(digests) == 3
    assert digest(list(examples)) in digests
