"""Invented names and values for the quick-start corpus.

Every name (person, town, firm, product, drug, gene) is built from the parts in templates/names.yaml and belongs to one
of three pools, `pretrain`, `train` and `test`, so a name in one pool's text never appears in another's. All pools
share numbers and common nouns, as all text does.

The fields of templates/<domain>.yaml describe their values in a small language. A list draws one of its items; text
draws what is in braces, from left to right:

    {first} {surname} {place} {work} {code}     a name from the pool; a work is a title, a code a gene-like symbol
    {person}                                    a first name and a surname
    {coined mab|tinib}                          a coined stem with one of these endings
    {pick red|blue}                             one of these
    {int 5 80 [step]} {number 5 80 [step]}      a whole number from 5 to 80; `number` separates the thousands
    {decimal 15 280}                            a number from 1.5 to 28.0 with one decimal

`.lower` after the kind, as in {surname.lower}, writes the name in lower case.
"""

import random
import re
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Literal

import yaml

Pool = Literal["pretrain", "train", "test"]
TEMPLATES = Path(__file__).parent / "templates"

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
        """Draws the value that a field describes (module docstring)."""
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
