"""The index of texts: BM25 over their passages (tantivy), kept in the cache.

`refresh` compares the texts with what was indexed, and indexes those that differ. A text that is indexed anew or is
gone leaves its passages in the index, marked, until tantivy merges them away; till then its words count in how rare a
word is. So the index is built again before they are more than `STALE` of all. `texts.json`, written last, names the
index's files: whatever is stopped before leaves the former state, or one that is built again.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from xxhash import xxh3_64_hexdigest, xxh3_128_hexdigest

from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import check_content, file_checksum, read_sealed, sealed, write_atomically
from swep_ds.evaluation.evaluate import CACHE
from swep_ds.texts import passages
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.passages import Passage, cut, joined
from swep_ds.texts.words import GRAM_WEIGHT, TITLE_WEIGHT, WORD_WEIGHT, grams, words

log = logging.getLogger(__name__)
FORMAT_VERSION = 1  # raise it when what is indexed changes: the fields, `cut`, `words` or `grams`
STALE = 0.1  # largest share of passages that are in the index and no longer in a text
PLACE = ("text", "begin", "end")  # the number of a passage's text, of which it is characters [begin, end)
# by field its factor: the words of a passage, pieces of words, and both of the text's name
FIELDS = {"words": WORD_WEIGHT, "grams": GRAM_WEIGHT, "title_words": TITLE_WEIGHT, "title_grams": TITLE_WEIGHT}
WRITER = 64 * 2**20  # bytes that tantivy gathers before it writes a segment
PLACES = 3  # decimals of a score that are compared: the order in which its parts are added changes those that follow


class TextIndex:
    """The passages of texts, by name. Texts of a folder are known by its path, those of a mapping by its first name.

    Raises InputError: no tantivy, no text has a word, a text cannot be read, or the cache cannot be written.
    """

    def __init__(self, texts: Mapping[str, str]):
        try:
            import tantivy
        except ImportError:
            raise InputError("asking many texts needs tantivy: pip install '.[texts]' in a checkout") from None
        self._tantivy = tantivy
        self._texts = texts
        is_folder = isinstance(texts, FolderTexts)
        known_by = f"folder {texts.folder.resolve()}" if is_folder else f"mapping {min(texts, default='')}"
        self._folder = CACHE / "texts" / xxh3_64_hexdigest(known_by.encode(errors="surrogateescape"))
        self._lock = FileLock(self._folder.with_suffix(".lock"), fallback_to_soft=False)
        self._last_states: list[list[int]] = []  # those of the files that are written last, as they were opened
        self.refresh()
        if is_folder:
            count = sum(count > 0 for _, count, _, _ in self._kept.values())
            left_out = texts.left_out + len(self._kept) - count
            if left_out:
                log.warning("%s: %d texts; %d other files are left out", texts.what, count, left_out)

    def __len__(self) -> int:
        """How many passages the texts have."""
        return sum(count for _, count, _, _ in self._kept.values())

    def refresh(self) -> None:
        """Indexes the texts that are new or have changed, and leaves out those that are gone. Raises InputError: as the
        class."""
        try:
            with self._locked():
                self._open()
                self._update()
                self._open()
        except (OSError, ValueError) as error:  # tantivy's are ValueErrors
            raise InputError(
                f"{self._folder}: the index of texts cannot be written ({reason(error)}): make room there, or name "
                "another folder in HF_DATASETS_CACHE (or HF_HOME)"
            ) from error
        if not len(self):
            raise InputError("texts: none of them has a word: give at least one")

    def best(self, question: str, count: int) -> list[Passage]:
        """The `count` best passages for a question, best first, of those that share a word with it, or its beginning.
        Equal ones are in the order of their texts."""
        asked = words(question)
        if not asked:
            return []
        query = self._query(asked)
        limit = 2 * count
        while True:
            hits = self._searcher.search(query, limit, count=False).hits
            scores = [round(score, PLACES) for score, _ in hits]
            if len(hits) < limit or scores[-1] < scores[count - 1]:
                break
            limit *= 4  # equal passages beyond the last: which are first depends on when they were indexed
        places = [address for _, address in hits]
        columns = [self._searcher.fast_field_values(name, places) for name in PLACE]
        ranked = []
        for score, number, begin, end in zip(scores, *columns, strict=True):
            ranked.append((-score, Passage(self._names[number], begin, end)))
        return [passage for _, passage in sorted(ranked)[:count]]

    def pieces(self, questions: Sequence[str], count: int) -> list[list[tuple[Passage, str]]]:
        """For each question its best passages, `joined`, with what they say. If a text is no longer what was indexed,
        it is indexed first. Raises InputError: as `refresh`, or it changes all the time."""
        for _ in range(3):
            pieces_of = [joined(self.best(question, count)) for question in questions]
            contents = self._contents(set(chain.from_iterable(pieces_of)))
            if contents is not None:
                return [[(piece, contents[piece]) for piece in pieces] for pieces in pieces_of]
            self.refresh()
        raise InputError("texts change while they are read: write them to another folder, and move them when complete")

    def _contents(self, pieces: set[Passage]) -> dict[Passage, str] | None:
        """What the pieces say; None if one of their texts is no longer what was indexed."""
        contents = {}
        for name, of_text in groupby(sorted(pieces), key=attrgetter("name")):
            try:
                text = self._texts[name]
            except (InputError, KeyError):
                return None
            if _checksum(text) != self._kept[name][2]:
                return None
            contents |= {piece: text[piece.begin : piece.end] for piece in of_text}
        return contents

    @property
    def checksum(self) -> str:
        """32 digits that change with any text or name."""
        return xxh3_128_hexdigest(repr([(name, text[2]) for name, text in self._kept.items()]).encode())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            log.warning("%s: waiting for another process, which indexes the same texts", self._folder)
            self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _open(self) -> None:
        """Opens what is kept, unless it is open. What cannot be used counts as nothing, and one line says why."""
        last = [file for file in (self._folder / "texts.json", self._folder / "meta.json") if file.exists()]
        states = list(map(_state, last))
        if states and states == self._last_states:
            return
        self._kept: dict[str, list[Any]] = {}  # by name: its number, its passages, the checksum and the state
        if not self._folder.exists():
            return
        try:
            kept = read_sealed(self._folder / "texts.json")
            if kept["version"] != _version():
                raise ValueError("another version made it")
            for name, (checksum, state) in kept["files"].items():
                if _state(self._folder / name) != state:
                    check_content(self._folder / name, checksum)
            self._index = self._tantivy.Index.open(str(self._folder))
        except (OSError, ValueError) as error:
            log.warning("%s: texts are indexed again (%s)", self._folder, reason(error))
            return
        self._last_states = states
        self._kept = kept["texts"]
        self._names = {text[0]: name for name, text in self._kept.items()}
        self._searcher = self._index.searcher()

    def _update(self) -> None:
        if isinstance(self._texts, FolderTexts):
            states = self._texts.states()
        else:
            states = {name: _checksum(text) for name, text in sorted(self._texts.items())}
        kept = self._kept
        changed = []
        stale = [name for name in kept if name not in states]
        for name, state in states.items():
            if name not in kept:
                changed.append(name)
            elif (not state or kept[name][3] != state) and _checksum(self._texts[name]) != kept[name][2]:
                changed.append(name)
                stale.append(name)
        if not (changed or stale or any(kept[name][3] != state for name, state in states.items())):
            return
        left = self._stale() if kept else 0
        if left + sum(kept[name][1] for name in stale) > STALE * len(self):
            kept, changed, stale = {}, list(states), []
        self._write(states, changed, stale, kept)

    def _stale(self) -> int:
        """Passages that are in the index and no longer in a text."""
        segments = json.loads((self._folder / "meta.json").read_bytes())["segments"]
        return sum(segment["deletes"]["num_deleted_docs"] for segment in segments if segment["deletes"])

    def _write(self, states: dict[str, Any], changed: list[str], stale: list[str], kept: dict[str, list[Any]]) -> None:
        """Indexes the `changed` texts beside what is `kept`, if anything is, without the passages of the `stale`."""
        if not kept:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
            self._index = self._tantivy.Index(self._schema(), str(self._folder))
        added = {}
        first = 1 + max((text[0] for text in kept.values()), default=0)
        # without `with`, which commits after an error, too
        writer = self._index.writer(WRITER, num_threads=1)
        try:
            for name in stale:
                writer.delete_documents_by_term("text", kept[name][0])
            for number, name in enumerate(changed, first):
                text = self._texts[name]
                title = words(name.removesuffix(Path(name).suffix))
                count = 0
                for begin, end, of_passage in cut(text):
                    writer.add_document(self._document((number, begin, end), of_passage, title))
                    count += 1
                added[name] = [number, count, _checksum(text)]
            writer.commit()
        finally:
            writer.wait_merging_threads()
        texts = {}
        for name, state in states.items():
            texts[name] = [*added.get(name, kept.get(name, []))[:3], state]
        files = {}
        for path in sorted(self._folder.glob("[!.]*")):
            if path.name != "texts.json":
                files[path.name] = [file_checksum(path), _state(path)]
        document = {"version": _version(), "files": files, "texts": texts}
        write_atomically(self._folder / "texts.json", sealed(json.dumps(document)))

    def _schema(self) -> Any:
        schema = self._tantivy.SchemaBuilder()
        for name in PLACE:  # signed: tantivy deletes nothing by an unsigned number
            schema.add_integer_field(name, indexed=name == "text", fast=True)
        for name in FIELDS:
            schema.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
        return schema.build()

    def _document(self, place: tuple[int, int, int], of_passage: list[str], title: list[str]) -> Any:
        document = self._tantivy.Document()
        for name, value in zip(PLACE, place, strict=True):
            document.add_integer(name, value)
        for name, terms in zip(FIELDS, (of_passage, grams(of_passage), title, grams(title)), strict=True):
            document.add_text(name, " ".join(terms))
        return document

    def _query(self, asked: list[str]) -> Any:
        """A single OR of all terms, in which tantivy skips passages that cannot be among the best."""
        query = self._tantivy.Query
        pieces = grams(asked)
        terms = []
        for (name, weight), of_field in zip(FIELDS.items(), (asked, pieces, asked, pieces), strict=True):
            for term, count in Counter(of_field).items():
                scored = query.term_query(self._index.schema, name, term)
                terms.append((self._tantivy.Occur.Should, query.boost_query(scored, weight * count)))
        return query.boolean_query(terms)


def _version() -> list[int]:
    return [FORMAT_VERSION, passages.WORDS, passages.STEP]


def _state(path: Path) -> list[int]:
    """What changes whenever a file does."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _checksum(text: str) -> str:
    return xxh3_64_hexdigest(text.encode(errors="surrogatepass"))
