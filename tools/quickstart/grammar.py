"""Builds passages and their questions from the templates in templates/<domain>.yaml.

A passage is about two or three things of one kind (bridges, drugs, used cars ...) and states the same relations of
each, so the relation narrows the answer to a few candidates and the entity decides between them. Every name is built
from the parts in templates/names.yaml and belongs to one pool: a name of one pool's text never appears in another's.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Literal

import yaml

Pool = Literal["pretrain", "train", "test"]
TEMPLATES = Path(__file__).parent / "templates"

_SLOT = re.compile(r"\{([a-z]+)(2?)\}")
_DRAW = re.compile(r"\{(\w+)(\.lower)?(?: ([^}]*))?\}")
_NUMBERS = {"int": str, "number": "{:,}".format, "decimal": lambda tenths: f"{tenths // 10}.{tenths % 10}"}


@cache
def _pools() -> dict[str, dict[Pool, list[str]]]:
    parts = yaml.safe_load((TEMPLATES / "names.yaml").read_text(encoding="utf-8"))
    parts = {name: text.split() for name, text in parts.items()}

    def join(heads: str, tails: str) -> list[str]:
        return [head + tail for head in parts[heads] for tail in parts[tails] if head.lower() != tail]

    codes = ["".join(letters) for letters in permutations("ABCDEFGHKLMNPRSTVWXZ", 3)]
    works = [f"The {adjective} {noun}" for adjective in parts["work_adjectives"] for noun in parts["work_nouns"]]
    return {
        "first": _deal(parts["first_names"], "first names"),
        "surname": _deal(join("surname_heads", "surname_tails"), "surnames"),
        "place": _deal(join("place_heads", "place_tails"), "places"),
        "coined": _deal(join("coined_heads", "coined_tails"), "coined"),
        "code": _deal(codes, "codes"),
        "work": _deal(works, "works"),
    }


def _deal(names: list[str], salt: str) -> dict[Pool, list[str]]:
    """Splits the names over the pools: half for pretraining, a quarter each for training and for the tests."""
    names = list(dict.fromkeys(names))
    random.Random(f"swep-ds quickstart {salt}").shuffle(names)
    half = len(names) // 2
    rest = half + len(names) // 4
    return {"pretrain": names[:half], "train": names[half:rest], "test": names[rest:]}


class World:
    """Draws names from one pool and values from common ranges, all from one `random.Random`."""

    def __init__(self, rng: random.Random, pool: Pool):
        self.rng = rng
        self.pool = pool

    def draw(self, value: str | list[str]) -> str:
        """Draws the value that a field describes; of a list, one of its items."""
        return _DRAW.sub(self._draw, self.rng.choice(value) if isinstance(value, list) else value)

    def _draw(self, match: re.Match[str]) -> str:
        kind, lower, options = match.groups()
        match kind:
            case "pick":
                text = self.rng.choice(options.split("|"))
            case "int" | "number" | "decimal":
                low, high, *step = map(int, options.split())
                text = _NUMBERS[kind](self.rng.randrange(low, high + 1, *step))
            case "person":
                text = f"{self._name('first')} {self._name('surname')}"
            case "coined":
                text = self._name("coined") + self.rng.choice(options.split("|"))
            case "code":
                text = self._name("code") + str(self.rng.randint(1, 9))
            case _:
                text = self._name(kind)
        return text.lower() if lower else text

    def _name(self, kind: str) -> str:
        return self.rng.choice(_pools()[kind][self.pool])


@dataclass(frozen=True)
class Kind:
    """One kind of thing. In templates `{year}` is the field of the thing a sentence is about, `{year2}` that of a
    second thing, and `{short}` the full name at first mention and its last word (a surname) after."""

    title: str
    fields: dict[str, str | list[str]]  # `name` and others, as `World.draw` takes them
    sentences: list[str]
    questions: dict[str, list[str]]  # the field asked for -> templates; "name" asks for the thing itself
    openers: list[str] = field(default_factory=list)  # come first, state nothing
    asides: list[str] = field(default_factory=list)  # come anywhere, state nothing
    informal: bool = False  # sentences do not start with a capital

    @property
    def templates(self) -> list[tuple[str, str]]:
        """All questions, each with the field that it asks for."""
        return [(asked, template) for asked, templates in self.questions.items() for template in templates]


@cache
def load_kinds(domain: str) -> list[Kind]:
    return [Kind(**kind) for kind in yaml.safe_load((TEMPLATES / f"{domain}.yaml").read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class Mention:
    """Where the text mentions a field of a thing: characters [start, end), in sentence number `sentence`."""

    record: int
    field: str
    start: int
    end: int
    sentence: int


@dataclass
class Passage:
    kind: Kind
    records: list[dict[str, str]]
    text: str = ""
    mentions: list[Mention] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # templates of its sentences

    @property
    def fields(self) -> set[str]:
        """Those that the text states of any thing."""
        return {mention.field for mention in self.mentions}

    def stated(self, record: int) -> set[str]:
        """The fields that the text states of one thing."""
        return {mention.field for mention in self.mentions if mention.record == record}

    def add(self, template: str, subjects: tuple[int, ...], sentence: int) -> None:
        """Appends a sentence, its slots filled from the records `subjects` (first, second), and its mentions."""
        self.used.add(template)
        text = f"{self.text} " if self.text else ""
        begin = len(text)
        cursor = 0
        for slot in _SLOT.finditer(template):
            text += template[cursor : slot.start()]
            cursor = slot.end()
            record = subjects[1 if slot[2] else 0]
            name = slot[1].replace("short", "name")
            value = self.records[record][name]
            if slot[1] == "short" and "name" in self.stated(record):
                value = value.split()[-1]
            self.mentions.append(Mention(record, name, len(text), len(text) + len(value), sentence))
            text += value
        text += template[cursor:]
        if not self.kind.informal:
            text = text[:begin] + text[begin].upper() + text[begin + 1 :]
        self.text = text


@cache
def slots(template: str) -> tuple[frozenset[str], bool]:
    """The fields that a template states of its first thing, without names, and whether it needs a second thing."""
    pairs = _SLOT.findall(template)
    return frozenset(name for name, _ in pairs) - {"name", "short"}, any(second for _, second in pairs)


def draw_records(kind: Kind, world: World, count: int) -> list[dict[str, str]]:
    """`count` things that differ from each other in every field."""
    records: list[dict[str, str]] = []
    while len(records) < count:
        record = {name: world.draw(value) for name, value in kind.fields.items()}
        if all(record[name] != other[name] for other in records for name in record):
            records.append(record)
    return records


def write_passage(kind: Kind, world: World, brief: bool = False, most: int | None = None) -> Passage:
    """A passage of three to seven sentences. A `brief` one states a single relation of two things and nothing else, in
    one or two sentences. `most` keeps that many sentences at most, all of which state something, so that its things may
    differ in their relations."""
    rng = world.rng
    count = 2 if brief else rng.choice((2, 3, 3))
    records = draw_records(kind, world, count)
    relations = rng.sample([name for name in kind.questions if name != "name"], 1 if brief else 2)
    stated: list[set[str]] = [set() for _ in records]
    plan: list[tuple[str, tuple[int, ...]]] = []
    for rank, relation in enumerate(relations):
        order = [i for i in range(count) if rank == 0 or count == 2 or rng.random() < 0.6]
        rng.shuffle(order)
        while order:
            subject = order.pop()
            if relation in stated[subject]:
                continue
            partner = next((other for other in order if relation not in stated[other]), None)
            options = []
            for template in kind.sentences:
                fields, paired = slots(template)
                subjects = (subject, partner) if paired else (subject,)
                if relation in fields and None not in subjects and not any(fields & stated[i] for i in subjects):
                    options.append((template, subjects))
            fresh = [option for option in options if option[0] not in {template for template, _ in plan}]
            template, subjects = rng.choice(fresh or options)
            plan.append((template, subjects))
            for i in subjects:
                stated[i] |= slots(template)[0]
    rng.shuffle(plan)
    plan = plan[:most]
    padded = not brief and most is None
    if kind.asides and padded and (len(plan) < 3 or (len(plan) < 6 and rng.random() < 0.5)):
        plan.insert(rng.randint(0, len(plan)), (rng.choice(kind.asides), ()))
    if kind.openers and padded and len(plan) < 7:
        plan.insert(0, (rng.choice(kind.openers), ()))
    passage = Passage(kind, records)
    for number, (template, subjects) in enumerate(plan):
        passage.add(template, subjects, number)
    return passage


def write_questions(passage: Passage, world: World, limit: int) -> list[tuple[str, Mention]]:
    """Up to `limit` questions, each with the mention that answers it; at most one asks for a name."""
    rng = world.rng
    candidates = []
    for record, values in enumerate(passage.records):
        stated = passage.stated(record)
        for asked, templates in passage.kind.questions.items():
            fitting = [t for t in templates if slots(t)[0] <= stated]
            if asked not in stated or not fitting:
                continue
            template = rng.choice(fitting)
            where = [m for m in passage.mentions if m.record == record and m.field == asked]
            if asked == "name":
                # a name may recur: the answer is the mention beside the fact that the question states
                beside = {m.sentence for m in passage.mentions if m.record == record and m.field in slots(template)[0]}
                where = [m for m in where if m.sentence in beside and m.end - m.start == len(values["name"])]
            if where:
                candidates.append((_fill(template, values), where[0]))
    rng.shuffle(candidates)
    names = [c for c in candidates if c[1].field == "name"][:1]
    chosen = names + [c for c in candidates if c[1].field != "name"][: limit - len(names)]
    rng.shuffle(chosen)
    return chosen


def write_unanswerable(passage: Passage, kinds: Sequence[Kind], world: World) -> str:
    """A question that looks as if the passage answered it, and which it does not. About half ask what is not stated of
    a thing of the passage; the others about a thing that it does not mention, most in a relation that it states of its
    own things (an entity swap, as in SQuAD v2.0: Rajpurkar et al., ACL 2018), a fifth about any of `kinds`."""
    rng = world.rng
    text = passage.text.lower()
    while True:
        kind = passage.kind
        if rng.random() < 0.5:
            number = rng.choice(sorted({mention.record for mention in passage.mentions if mention.field == "name"}))
            stated = passage.stated(number)
            confusing = rng.random() < 0.5
            templates = [
                template
                for asked, template in kind.templates
                if asked not in stated and slots(template)[0] <= stated and (not confusing or asked in passage.fields)
            ]
            if templates:
                return _fill(rng.choice(templates), passage.records[number])
            continue
        if rng.random() < 0.2:
            kind = rng.choice(kinds)
        [record] = draw_records(kind, world, 1)
        fitting = [
            (asked, template)
            for asked, template in kind.templates
            if kind is not passage.kind or (asked in passage.fields and slots(template)[0] <= passage.fields)
        ]
        asked, template = rng.choice(fitting)
        named = slots(template)[0] | ({"name"} - {asked})
        if not any(record[name].lower() in text for name in named):
            return _fill(template, record)


def _fill(template: str, record: dict[str, str]) -> str:
    return _SLOT.sub(lambda slot: record[slot[1].replace("short", "name")], template)
