"""Invented names and values for the quick-start corpus.

Every named thing (person, town, firm, product, drug, gene) is put together from parts and dealt out, once and for
all, to one of three pools, `pretrain`, `train` and `test`: a name that stands in one pool's text cannot stand in
another's. Numbers, dates and common nouns are shared by all pools, as they are in any language.
"""

# ruff: noqa: SIM905  (word lists read better as text than as a hundred string literals)

from __future__ import annotations

import random
from typing import Literal

Pool = Literal["pretrain", "train", "test"]
POOLS: tuple[Pool, ...] = ("pretrain", "train", "test")

_FIRST = """
Adela Agnes Albert Alice Alma Ambrose Amos Anders Anselm Arthur Astrid Basil Beatrice Benedict Bernard
Bertha Bruno Camilla Caspar Cecil Clara Claudia Conrad Cora Cyril Daphne Dora Edgar Edith Edmund Edwin Elena
Elias Eliza Elsa Emil Emma Erik Ernest Esther Eva Felix Fiona Flora Frances Frieda Gemma George Gideon Greta
Gustav Hanna Harold Harriet Hector Helena Henrik Hilda Hugo Ida Ines Ingrid Irene Isaac Ivan Ivy Jacob
Jasper Joan Johan Jonas Josef Judith Julia Julius Karl Kate Klara Lars Laura Leah Lena Leo Leonard Lilian
Linus Lorenz Lotte Louis Lucas Lucy Lydia Mabel Magnus Marcus Margot Marina Martha Martin Matilda Maud Max
Miriam Mona Morris Nadia Naomi Nell Nina Nora Olaf Olga Oliver Oscar Otto Paula Percy Petra Philip Phoebe
Ralph Rhoda Robert Rosa Rufus Ruth Sabine Samuel Sarah Selma Sigrid Silas Simon Sofia Stella Susan Sven
Sylvia Thea Theodor Thomas Tilda Toby Ursula Vera Victor Viola Walter Wanda Wilma Winston Yvonne
""".split()
_SURNAME_HEADS = """
Al Ard Bar Bel Ber Bran Bren Cal Car Col Cor Dal Dan Del Dor Dun El Ern Fal Far Fen Fin Gar Gil Gol Gran Hal
Har Hel Hol Jar Jor Kal Kar Kel Kor Lan Lar Lin Lor Mal Mar Mel Mor Nar Nel Nor Or Os Pal Par Pel Quen Ral
Ran Ros Sal San Sel Sor Tal Tar Tel Tor Ul Val Var Ver Vol Wal War Wen Wil Yar Zel
""".split()
_SURNAME_TAILS = """
ander ard aven beck bert by combe dane dell den der dine don fast fels feld gate grave ham hart holt ick ing
ins kin land lett ley lin lock man mark mont ner nick quist rick roth sen shaw son stein strom ton vik ward
way wick win worth
""".split()
_PLACE_HEADS = """
Amber Ash Barrow Birch Black Bram Briar Bright Brook Carn Cedar Chalk Clear Cliff Copper Crane Dark Deep
Drift Dusk Eagle East Elder Elm Ever Fair Falcon Fern Flint Fox Frost Glass Gold Grey Gull Hare Haven Hawk
Hazel Heath High Holly Iron Kings Lark Linden Long Low Maple Marsh Mill Moon Moss New North Oak Old Orchard
Otter Pine Raven Red River Rock Rowan Salt Sand Silver Slate South Spring Stone Storm Swan Thorn Tide Wheat
White Wild Willow Winter Wolf
""".split()
_PLACE_TAILS = """
bank barrow bay borough bourne bridge burn bury castle cliff cote cross dale down fell field firth ford gate
glen grove hall haven head hill holm hurst keep lake lea marsh mere mill mont moor mouth port reach ridge
rock shaw side stead stoke thorpe ton vale view ville wall water well wick wold wood worth
""".split()
_COINED_HEADS = """
Ac Al Am Aq Ar As Av Az Bel Bio Bon Cal Cel Cor Cy Dex Dia Du Ec El Em Er Ev Fen Flo Gal Gen Hel Hy In Jo
Kal Ker Lam Lev Lo Lu Mag Mer Mi Mon Nav Neo Nex No Ob Ol Om Or Os Pax Per Pro Qua Ra Re Ro Sal Sen So Sy Ta
Tel Ti Tri Tu Ul Um Va Vel Ver Vi Vo Xe Ya Za Zel Zo
""".split()
_COINED_MIDDLES = """
ba be bi bra ca da do fa fi ga la le li lo lu ma mi mo na ne no ra ri ro sa si ta te ti to va ve vi xa zo
""".split()
_LETTERS = "ABCDEFGHKLMNPRSTVWXZ"
_ADJECTIVES = """
Ancient Bitter Borrowed Broken Burning Crooked Distant Drowned Empty Faithful Fallen Final Forgotten Frozen
Gentle Gilded Hidden Hollow Honest Hungry Idle Last Little Lonely Lost Narrow Painted Patient Paper Quiet
Restless Second Secret Silent Sleeping Stolen Sunken Tenth Unfinished Velvet Wandering Wooden
""".split()
_NOUNS = """
Angel Apprentice Archive Bell Bride Candle Carriage Chapel Clock Compass Court Crown Daughter Door Empire
Feather Ferry Garden Guest Harbour Hour House Island Kingdom Ladder Lantern Letter Library Map Mirror
Mountain Orchard Palace Piano Pilgrim Prince Province Ring Road Season Shepherd Shore Soldier Staircase
Stranger Summer Tower Train Visitor Voyage Widow Window Witness
""".split()
_MONTHS = "January February March April May June July August September October November December".split()


def _deal(parts: list[str], salt: str) -> dict[Pool, list[str]]:
    """Deal `parts` out to the pools: half for pretraining, a quarter each for training and for the tests."""
    parts = list(dict.fromkeys(parts))
    random.Random(f"swep-ds quickstart {salt}").shuffle(parts)
    half, quarter = len(parts) // 2, len(parts) // 4
    return {
        "pretrain": parts[:half],
        "train": parts[half : half + quarter],
        "test": parts[half + quarter :],
    }


def _join(heads: list[str], tails: list[str]) -> list[str]:
    return [head + tail for head in heads for tail in tails if head.lower() != tail]


_POOLED = {
    "first": _deal(_FIRST, "first names"),
    "surname": _deal(_join(_SURNAME_HEADS, _SURNAME_TAILS), "surnames"),
    "place": _deal(_join(_PLACE_HEADS, _PLACE_TAILS), "places"),
    "coined": _deal(_join(_COINED_HEADS, _COINED_MIDDLES), "coined"),
    "code": _deal([a + b + c for a in _LETTERS for b in _LETTERS for c in _LETTERS if len({a, b, c}) == 3], "codes"),
    "work": _deal([f"The {adjective} {noun}" for adjective in _ADJECTIVES for noun in _NOUNS], "works"),
}


class World:
    """Draws names from one pool and values from common ranges, all from one `random.Random`."""

    def __init__(self, rng: random.Random, pool: Pool):
        self.rng, self.pool = rng, pool

    def _draw(self, sort: str) -> str:
        return self.rng.choice(_POOLED[sort][self.pool])

    def pick(self, *options: str) -> str:
        return self.rng.choice(options)

    def first(self) -> str:
        return self._draw("first")

    def person(self) -> str:
        return f"{self._draw('first')} {self._draw('surname')}"

    def surname(self) -> str:
        return self._draw("surname")

    def place(self) -> str:
        return self._draw("place")

    def coined(self, *endings: str) -> str:
        """A made-up word such as a brand, a drug or a genus: coined stem and one of `endings`."""
        return self._draw("coined") + self.rng.choice(endings or ("",))

    def code(self) -> str:
        """A gene-like symbol: three letters and a digit."""
        return self._draw("code") + str(self.rng.randint(1, 9))

    def work(self) -> str:
        """The title of a book, a play or a game."""
        return self._draw("work")

    def year(self, first: int, last: int) -> str:
        return str(self.rng.randint(first, last))

    def date(self) -> str:
        return f"{self.rng.choice(_MONTHS)} {self.rng.randint(1, 28)}"

    def number(self, low: int, high: int, step: int = 1, unit: str = "") -> str:
        """A whole number with thousands separators, followed by `unit` when there is one."""
        value = f"{self.rng.randrange(low, high + 1, step):,}"
        return f"{value} {unit}" if unit else value

    def decimal(self, low: int, high: int, unit: str) -> str:
        """A number with one decimal between `low / 10` and `high / 10`."""
        value = self.rng.randint(low, high)
        return f"{value // 10}.{value % 10} {unit}"

    def dollars(self, low: int, high: int, step: int = 1) -> str:
        return f"${self.rng.randrange(low, high + 1, step):,}"
