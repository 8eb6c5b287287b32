"""The index of texts: BM25 over their passages (tantivy), kept in the cache.

`refresh` compares the texts with what was indexed, and indexes those that differ. The passages of a text that has
changed or is gone stay in the index, marked, until tantivy merges them away: till then their words count in how rare a
word is. So all is indexed again before they are more than `STALE` of all. `texts.json`, written last, names the files
of the index: a writer that is killed before leaves the former index, or one that is built again.
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import KeysView, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from xxhash import xxh3_64_hexdigest

from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import read_sealed, sealed, write_atomically
from swep_ds.evaluation.evaluate import CACHE
from swep_ds.texts import passages
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.passages import Passage, Piece, cut, joined
from swep_ds.texts.words import GRAM_WEIGHT, TITLE_WEIGHT, WORD_WEIGHT, grams, words

log = logging.getLogger(__name__)
FORMAT_VERSION = 2  # part of every index's name: raise it when what is indexed changes
STALE = 0.1  # largest share of passages that are in the index and no longer in a text
MEMORY = 64 * 2**20  # bytes that tantivy gathers before it writes them
DECIMALS = 3  # digits of scores that are compared: those that follow depend on the order in which parts are added
PLACE = ("text", "begin", "end")  # the number of a passage's text, of which it is characters [begin, end)
# by field its factor: the words of a passage, their grams, and both of the text's name
FIELDS = {"words": WORD_WEIGHT, "grams": GRAM_WEIGHT, "title": TITLE_WEIGHT}


class TextIndex:
    """The passages of texts, by name. A folder's index is known by its path, that of a mapping by the first name.

    Raises InputError: no tantivy, no text has a word, a text cannot be read, or the cache cannot be written.
    """

    def __init__(self, texts: Mapping[str, str] | FolderTexts):
        try:
            import tantivy
        except ImportError:
            raise InputError("asking many texts needs tantivy: pip install '.[texts]' in a checkout") from None
        self._tantivy = tantivy
        self.texts = texts
        place = texts.folder.resolve() if isinstance(texts, FolderTexts) else min(texts, default="")
        known_by = repr((type(place), str(place), FORMAT_VERSION, passages.WORDS, passages.STEP))
        self._kept: dict[str, tuple[Any, ...]] = {}  # by name: its number, its passages, the checksum and the state
        self._folder = CACHE / "texts" / xxh3_64_hexdigest(known_by.encode())
        self.refresh()

    def __len__(self) -> int:
        """How many passages the texts have."""
        return sum(count for _, count, _, _ in self._kept.values())

    @property
    def names(self) -> KeysView[str]:
        """Those of the texts."""
        return self._kept.keys()

    def refresh(self) -> None:
        """Indexes the texts that are new or have changed, alone, and leaves out those that are gone. Another process
        that does so is waited for. Raises InputError: as the class."""
        try:
            self._folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(self._folder.with_suffix(".lock"), fallback_to_soft=False):
                self._open()
                self._update()
        except (OSError, ValueError) as error:  # tantivy's are ValueErrors
            raise InputError(
                f"{self._folder}: the index of texts cannot be written ({reason(error)}): make room there, or name "
                "another folder in HF_DATASETS_CACHE (or HF_HOME)"
            ) from error
        if not len(self):
            raise InputError("texts: none of them has a word: give at least one")
        # it changes with any text or name
        said = [(name, checksum) for name, (_, _, checksum, _) in self._kept.items()]
        self.checksum = xxh3_64_hexdigest(repr(said).encode())

    def best(self, question: str, count: int) -> list[Passage]:
        """The `count` best passages for a question, best first, of those that share a word or a piece of one with it.
        Equal ones are in the order of names and places."""
        query = self._query(words(question))
        searcher, names = self._opened  # together: another thread may refresh
        limit = 2 * count
        while True:
            hits = searcher.search(query, limit, count=False).hits
            scores = [round(score, DECIMALS) for score, _ in hits]
            if len(hits) < limit or scores[-1] < scores[count - 1]:
                break
            limit *= 4  # which of the equal passages come first here depends on when they were indexed
        addresses = [address for _, address in hits]
        places = zip(*(searcher.fast_field_values(name, addresses) for name in PLACE), strict=True)
        ranked = []
        for score, (number, begin, end) in zip(scores, places, strict=True):
            ranked.append((-score, Passage(names[number], begin, end)))
        return [passage for _, passage in sorted(ranked)[:count]]

    def pieces(self, question: str, count: int) -> list[Piece]:
        """The best passages, `joined`, with what they say. If a text is no longer what was indexed, it is indexed
        first. Raises InputError: as `refresh`, or a text changes all the time."""
        for _ in range(3):
            pieces = []
            with suppress(InputError, KeyError):  # the text is gone
                for piece in joined(self.best(question, count)):
                    text = self.texts[piece.name]
                    if text_checksum(text) != self._kept[piece.name][2]:
                        raise KeyError(piece.name)
                    pieces.append((piece, text[piece.begin : piece.end]))
                return pieces
            self.refresh()
        raise InputError(f"text {piece.name}: changes while it is read: write it elsewhere, then move it")

    def _open(self) -> None:
        """Opens what is kept. What cannot be used counts as nothing, and a line says why. Other threads may read."""
        if not self._folder.exists():
            self._kept = {}
            return
        try:
            kept = read_sealed(self._folder / "texts.json")
            if not kept["files"].items() <= self._files().items():
                raise ValueError("its files have changed since they were written")
            self._index = self._tantivy.Index(self._schema(), str(self._folder))
        except (OSError, ValueError) as error:
            log.warning("%s: texts are indexed again (%s)", self._folder, reason(error))
            self._kept = {}
            return
        names, *columns = kept["texts"]
        self._opened = (self._index.searcher(), dict(zip(columns[0], names, strict=True)))
        self._kept = dict(zip(names, zip(*columns, strict=True), strict=True))

    def _files(self) -> dict[str, list[int]]:
        """The sizes and times of tantivy's files, of which a killed writer may leave more."""
        paths = [path for path in self._folder.glob("[!.]*") if path.name != "texts.json"]
        return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in paths}

    def _update(self) -> None:
        """Writes what differs from what is kept."""
        kept = self._kept
        if isinstance(self.texts, FolderTexts):
            states = self.texts.states({name: state for name, (_, _, _, state) in kept.items()})
        else:
            states = {name: text_checksum(text) for name, text in sorted(self.texts.items())}
        changed = []
        stale = [name for name in kept if name not in states]
        for name, state in states.items():
            if name not in kept:
                changed.append(name)
            elif (not state or state != kept[name][3]) and text_checksum(self.texts[name]) != kept[name][2]:
                changed.append(name)
                stale.append(name)
        if changed or stale or states != {name: state for name, (_, _, _, state) in kept.items()}:
            if kept and self._left() + sum(kept[name][1] for name in stale) > STALE * len(self):
                kept, changed, stale = {}, list(states), []
            self._write(states, changed, stale, kept)
            self._open()

    def _left(self) -> int:
        """Passages that are in the index and no longer in a text."""
        segments = json.loads((self._folder / "meta.json").read_bytes())["segments"]
        return sum(segment["deletes"]["num_deleted_docs"] for segment in segments if segment["deletes"])

    def _write(self, states: dict[str, Any], changed: list[str], stale: list[str], kept: dict[str, Any]) -> None:
        """Indexes the `changed` texts beside what is `kept`, if anything is, without the passages of the `stale`."""
        if not kept:
            shutil.rmtree(self._folder, ignore_errors=True)
            if self._folder.exists():  # a file has appeared meanwhile
                shutil.rmtree(self._folder)
            self._folder.mkdir()
            self._index = self._tantivy.Index(self._schema(), str(self._folder))
        added = {}
        first = 1 + max((number for number, _, _, _ in kept.values()), default=0)
        writer = self._index.writer(MEMORY, num_threads=1)  # without `with`, which commits after an error, too
        try:
            for name in stale:
                writer.delete_documents_by_term("text", kept[name][0])
            for number, name in enumerate(changed, first):
                text = self.texts[name]
                title = words(name.removesuffix(Path(name).suffix))
                title = " ".join(title + grams(title))
                count = 0
                for passage in cut(text):
                    fields = dict(zip((*PLACE, *FIELDS), (number, *passage, title), strict=True))
                    writer.add_document(self._tantivy.Document.from_dict(fields))
                    count += 1
                added[name] = (number, count, text_checksum(text))
            writer.commit()
        finally:
            writer.wait_merging_threads()
        texts = [(name, *(added.get(name) or kept[name][:3]), state) for name, state in states.items()]
        # columns of numbers and strings are read three times as fast as a list for each text
        content = json.dumps({"files": self._files(), "texts": list(zip(*texts, strict=True))})
        write_atomically(self._folder / "texts.json", sealed(content))

    def _schema(self) -> Any:
        schema = self._tantivy.SchemaBuilder()
        for name in PLACE:  # signed: tantivy deletes nothing by an unsigned number
            schema.add_integer_field(name, indexed=name == "text", fast=True)
        for name in FIELDS:
            schema.add_text_field(name, tokenizer_name="whitespace", index_option="freq")
        return schema.build()

    def _query(self, asked: list[str]) -> Any:
        """A single OR of all terms, in which tantivy skips passages that cannot be among the best."""
        query = self._tantivy.Query
        pieces = list(filter(None, grams(asked)))
        terms = []
        for (name, weight), of_field in zip(FIELDS.items(), (asked, pieces, asked + pieces), strict=True):
            for term, count in Counter(of_field).items():
                scored = query.term_query(self._index.schema, name, term)
                terms.append((self._tantivy.Occur.Should, query.boost_query(scored, weight * count)))
        return query.boolean_query(terms)


def text_checksum(text: str) -> str:
    """What identifies what a text says."""
    return xxh3_64_hexdigest(text.encode(errors="surrogatepass"))
