"""The terms of search, against lists written by hand."""

import unicodedata

import pytest

from swep_ds.texts.passages import cut
from swep_ds.texts.words import grams, words

CASES = {
    "English": ("The Abbey_was re-founded (1204).", "the abbey was re founded 1204", "abbe foun"),
    "numbers": ("1,625 of 16250", "1 625 of 16250", "1625"),
    "German": ("Die Mu\u0308ller-STRASSE", "die m\u00fcller strasse", "m\u00fcll stra"),
    "Turkish": (
        "\u0130stanbul'da IŞIKLAR ışıklar",
        "istanbul da işiklar işiklar".replace("ş", "\u015f"),
        "ista işik işik".replace("ş", "\u015f"),
    ),
    "Hindi": (
        "\u0939\u093f\u0928\u094d\u0926\u0940, \u0939\u0948",
        "\u0939\u093f\u0928\u094d\u0926\u0940 \u0939\u0948",
        "\u0939\u093f\u0928\u094d",
    ),
    "Korean": ("다리는 1931년에", "다 리 는 1931 년 에", "다리 리는 년에"),
    "Chinese": ("上海在Pudong東", "上 海 在 pudong 東", "上海 海在 pudo"),
    "Japanese": ("水車は建つ。", "水 車 は 建 つ", "水車 車は は建 建つ"),
    "Thai": (
        "\u0e1b\u0e35 \u0e40\u0e1b\u0e47\u0e19",
        "\u0e1b\u0e35 \u0e40 \u0e1b\u0e47 \u0e19",
        "\u0e1b\u0e35\u0e40\u0e1b\u0e47 \u0e40\u0e1b\u0e47\u0e19",
    ),
    "quotation marks": ("A “mill’s” Straße \ud800–½", "a mill s strasse ½", "stra"),
    "none": ("?! _", "", ""),
}


@pytest.mark.parametrize(("text", "expected", "pieces"), CASES.values(), ids=CASES)
def test_words_and_grams_of_each_script(text, expected, pieces):
    assert list(filter(None, grams(words(text)))) == pieces.split()
    for form in (text, unicodedata.normalize("NFD", text)):
        assert words(form) == expected.split()
        of_passages = [(of_passage.split(), of_grams.split()) for _, _, of_passage, of_grams in cut(form)]
        assert of_passages == [(expected.split(), pieces.split())] * bool(expected)


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("물레방아를 누가 지었는가?", "물레방아는 1931년에 이보라가 지었다."),
        ("Ankara nerede?", "Değirmen ANKARA'DA yapıldı."),
        ("turkulaiset", "Mylly rakennettiin Turkuun, turkulaisten avulla."),
    ],
)
def test_inflected_forms_share_grams(question, text):
    assert {*grams(words(question))} & {*grams(words(text))} - {""}
