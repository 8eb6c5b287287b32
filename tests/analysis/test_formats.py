"""Every format holds the same numbers, can be parsed, and treats names as text."""

import csv
import io
import json
import re
import sys

import pytest
from rich.console import Console

from swep_ds.analysis import formats, table
from swep_ds.commands.table import table as command
from swep_ds.common.errors import InputError
from swep_ds.evaluation.calibration import CALIBRATION
from tests.analysis.test_table import RUNS, block_of
from tests.support import fake_runs

ABSENT = ("low", "high", "p", "holm", "no_difference", "bootstrap_low", "bootstrap_high")
NAMES = ["MLE", "a|b & <i>50 %</i>_[x]", "gone"]


def example() -> table.Table:
    """A table whose differences are written by hand, without an interval in the last columns."""
    block = block_of(RUNS)
    block["title"] = "small & 5 %"
    block["model"] = "small & 5 %"
    for row, name in zip(block["rows"], NAMES, strict=True):
        row["name"] = name
    for column in block["columns"]:
        difference = {"mean": 1.0, "std": None, "n": 1, **dict.fromkeys(ABSENT), "significant": False}
        if column in ("squad", "wiki"):
            difference |= {"std": 0.5, "n": 3, "low": -0.25, "high": 2.0, "bootstrap_low": 0.5, "bootstrap_high": 1.5}
            difference |= {"p": 0.04, "holm": 0.08, "no_difference": column == "wiki"}
        significant = difference | {"mean": -3.0, "holm": 0.0001, "significant": True}
        block["rows"][1]["differences"][column] = {
            "exact_match": difference,
            "f1": significant if column == "wiki" else difference,
        }
    block["primary"] = [{"row": NAMES[1], "base": "gone", "column": "wiki", "metric": "f1", **significant}]
    for row in block["rows"]:
        for cell in row["scores"].values():
            for metric in table.METRICS:
                cell[metric]["paper"] = None
    block["rows"][0]["scores"]["squad"]["f1"]["paper"] = 89.5
    block["rows"][0]["scores"]["squad"] |= {
        name: {"mean": number, "std": None} for name, number in zip(CALIBRATION, (5, 20, 60), strict=True)
    }
    block["rows"][0]["scores"]["wiki"]["above_line"] = {"mean": 1.5, "std": 0.5}
    missing = [{"name": "gone", "labels": {}, "seed": 0, "reason": "no_room", "line": "gone, seed 0: no_room"}]
    return {"against": "MLE", "line": None, "blocks": [block], "notes": ["A note_."], "missing": missing}


NAME = r"a\|b & \<i>50 %\</i>\_\[x\]"
HEADS = (
    "data set | difference | 95 %: other seeds and questions | p (Holm) | no difference | SD over seeds | n "
    "| 95 %: these models, other questions"
)


def test_markdown():
    assert formats.markdown(example()) == (
        "**small & 5 %**\n\n"
        "| EM / F1 | squad | wiki | bio | out-of-domain mean | runs |\n"
        "| --- | --- | --- | --- | --- | --- |\n"
        "| MLE | 81.00 ± 1.41 (-) / 90.00 ± 0.00 (89.50) | 72.00 ± 2.83 (-) / 80.50 ± 0.71 (-) "
        "| 40.50 ± 0.71 (-) / 51.50 ± 2.12 (-) | 56.25 ± 1.77 (-) / 66.00 ± 1.41 (-) | 2 |\n"
        "| a\\|b & \\<i>50 %\\</i>\\_\\[x\\] | 81.00 (-) / 88.00 (-) | 72.00 (-) / 84.00 (-) "
        "| 42.50 (-) / 51.00 (-) | 57.25 (-) / 67.50 (-) | 1 |\n"
        "| gone | - | - | - | - | 0 |\n"
        "\n"
        "| ECE / AURC / coverage | squad | runs |\n"
        "| --- | --- | --- |\n"
        "| MLE | 5.00 / 20.00 / 60.00 | 2 |\n"
        f"| {NAME} | - / - / - | 1 |\n"
        "| gone | - | 0 |\n"
        "\n"
        "| F1 above the line | wiki | runs |\n"
        "| --- | --- | --- |\n"
        "| MLE | +1.50 ± 0.50 | 2 |\n"
        f"| {NAME} | - | 1 |\n"
        "| gone | - | 0 |\n"
        "\n"
        f"| EM less MLE | {HEADS} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {NAME} | squad | +1.00 | \\[-0.25, +2.00\\] | 0.080 |  | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {NAME} | wiki | +1.00 | \\[-0.25, +2.00\\] | 0.080 | yes | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {NAME} | bio | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n"
        f"| {NAME} | out-of-domain mean | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n"
        "\n"
        f"| F1 less MLE | {HEADS} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {NAME} | squad | +1.00 | \\[-0.25, +2.00\\] | 0.080 |  | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {NAME} | wiki | **-3.00** | \\[-0.25, +2.00\\] | \\< 0.001 | yes | 0.50 | 3 | \\[+0.50, +1.50\\] |\n"
        f"| {NAME} | bio | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n"
        f"| {NAME} | out-of-domain mean | +1.00 | n/a | n/a | n/a | n/a | 1 | n/a |\n"
        "\n"
        f"| primary comparison | {HEADS.replace('p (Holm)', 'p')} |\n"
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
        f"| {NAME} less gone, F1 | wiki | **-3.00** | n/a | \\< 0.001 | n/a | n/a | 1 | n/a |\n"
        "\n- A note\\_.\n\nMissing:\n\n- gone, seed 0: no\\_room\n"
    )


def test_csv_has_a_line_per_figure():
    lines = list(csv.DictReader(io.StringIO(formats.csv(example()))))
    assert len(lines) == 2 * 4 * 2 + 3 + 1
    assert {(line["model"], line["share"]) for line in lines} == {("small & 5 %", "5 %")}
    first = lines[1]
    assert (first["method"], first["data_set"], first["metric"], first["runs"]) == ("MLE", "squad", "f1", "2")
    assert (float(first["mean"]), float(first["std"]), float(first["paper"])) == (90, 0, 89.5)
    assert (first["against"], first["difference"], first["difference_low"]) == ("", "", "")
    assert [float(line["mean"]) for line in lines if line["metric"] in CALIBRATION] == [5, 20, 60]
    [other] = [line for line in lines if (line["method"], line["data_set"], line["metric"]) == (NAMES[1], "wiki", "f1")]
    keys = [f"difference_{key}" for key in ("n", "low", "high", "p", "holm", "bootstrap_low", "bootstrap_high")]
    assert [float(other[key]) for key in ("difference", *keys)] == [-3, 3, -0.25, 2, 0.04, 0.0001, 0.5, 1.5]
    assert other["difference_no_difference"] == "True"


@pytest.mark.parametrize("axis", ["data_set", "model", "difference_low"])
def test_an_axis_may_have_the_name_of_a_column(axis):
    table = example()
    for block in table["blocks"]:
        block["labels"] = {axis: "mine"}
    lines = list(csv.DictReader(io.StringIO(formats.csv(table))))
    assert {line[f"axis_{axis}"] for line in lines} == {"mine"}
    assert {line["data_set"] for line in lines} >= {"squad", "wiki"}
    assert {line["model"] for line in lines} == {"small & 5 %"}


def test_latex_has_as_many_cells_in_each_line_as_columns():
    text = formats.latex(example())
    tables = re.findall(r"\\begin\{tabular\}\{([lr]+)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tables) == 6
    for layout, body in tables:
        assert body.startswith("\\toprule")
        lines = [line for line in body.splitlines() if not re.fullmatch(r"\\\w+( *\\\w+)*|\\c\w+\{[\d-]+\}", line)]
        for line in lines:
            wide = sum(int(count) - 1 for count in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + wide == len(layout), line
    scores, _, _, _, differences, _ = tables
    assert scores[0] == "l" + 5 * "r"  # a column for both metrics
    assert r"\shortstack[r]{81.00 $\pm$ 1.41 (-)\\{}90.00 $\pm$ 0.00 (89.50)} &" in scores[1]
    assert text.count(r"\resizebox{\ifdim\width>\textwidth") == 6
    assert r"a|b \& <i>50 \%</i>\_[x] &" in scores[1]
    assert (
        r"& wiki & \textbf{$-$3.00} & [$-$0.25, +2.00] & < 0.001 & yes & 0.50 & 3 & [+0.50, +1.50] \\" in differences[1]
    )
    assert r"95 \%: other seeds and questions" in differences[1]
    said = [r"{\footnotesize\noindent A note\_.\par}", r"{\footnotesize\noindent Missing: gone, seed 0: no\_room\par}"]
    assert text.splitlines()[-2:] == said
    head, body = text.split("\n", 1)
    assert head == r"% \usepackage{booktabs,graphicx}"
    assert not re.search(r"(?<!\\)%(?!$)", body, re.MULTILINE)  # nothing in comments


def test_the_terminal_shows_the_same_numbers_in_bold_what_is_significant(monkeypatch):
    console = Console(width=200, record=True, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(formats, "Console", lambda **options: console)
    formats.show(example())
    shown = console.export_text(styles=True)
    assert "<i>50 %</i>_[x]" in shown
    bold = [part.split("\x1b[0m")[0] for part in shown.split("\x1b[1m")[1:]]
    assert not {"81.00 ± 1.41", "88.00", "(-)"} & set(bold)
    assert [text for text in bold if text[0] in "+-"] == ["-3.00"] * 2  # the difference, and the primary one
    assert "(89.50)" in shown


def test_no_run_at_all_still_makes_every_format(tmp_path):
    block = block_of({"MLE": []})
    empty = {"against": None, "line": None, "blocks": [block], "notes": [], "missing": []}
    formats.write(empty, tmp_path)
    assert json.loads((tmp_path / "table.json").read_text()) == empty
    assert "| MLE | 0 |" in (tmp_path / "table.md").read_text()


def test_the_command_prints_writes_and_names_what_is_missing(tmp_path, monkeypatch, capsys):
    def table_of(*words) -> tuple[int, str]:
        """The exit code and the output."""
        monkeypatch.setattr(sys, "argv", ["table", *map(str, words)])
        try:
            command()
        except SystemExit as ended:
            return ended.code, capsys.readouterr().out
        return 0, capsys.readouterr().out

    across = {"share": {"5 %": {"data.train_fraction": 0.05}, "100 %": {}}}
    variants = {"MLE": {}, "SWEP": {"method.name": "swep"}}
    cells = fake_runs.sweep(tmp_path, {"squad": 10, "nyt": 10}, variants=variants, across=across, seeds=[0, 1])
    for cell in cells[:-1]:
        fake_runs.finish(cell.folder, cell.recipe, {"squad": 3 + cell.seed, "nyt": 3})
    code, said = table_of(tmp_path / "runs", "--output", tmp_path / "out")
    assert code == 1
    assert "35.00 ± 7.07" in said
    assert f"missing: SWEP, 100 %, seed 1: not run ({cells[-1].folder})" in said
    files = [f"table.{suffix}" for suffix in formats.SUFFIXES]
    files += [f"curve-share-{metric}.{suffix}" for metric in ("em", "f1") for suffix in ("png", "svg")]
    assert {file.name for file in (tmp_path / "out").iterdir()} == set(files)
    assert f"in {tmp_path / 'out'}: {', '.join(files)}" in said
    fake_runs.finish(cells[-1].folder, cells[-1].recipe, {"squad": 4, "nyt": 3})
    assert table_of(tmp_path / "runs")[0] == 0
    whole = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["seeds"] for block in whole["blocks"] for row in block["rows"]] == [[0, 1], [0, 1], [0, 1], [0]]
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder: name another one"):
        table_of(tmp_path / "runs", "--output", tmp_path / "file")


ODD = ["=1 + 2", "a\nb|c", "\x1b[31m[bold]`code"]


@pytest.mark.parametrize("name", ODD)
def test_a_name_stays_text_in_its_cell(name, monkeypatch):
    """In every place of a name: row, column, title, label, axis, base row, note, missing run."""
    text = json.dumps(example()).replace("small & 5 %", "SMALL").replace('"gone', '"GONE').replace("A note_", "A NOTE")
    for old in ("MLE", "squad", "SMALL", "share", "5 %", "GONE", "A NOTE"):
        text = text.replace(json.dumps(old)[1:-1], json.dumps(f"{name}{old}")[1:-1])
    named, plain = json.loads(text), example()

    assert len(formats.markdown(named).splitlines()) == len(formats.markdown(plain).splitlines())
    assert len(formats.latex(named).splitlines()) == len(formats.latex(plain).splitlines())
    bars = [line.replace("\\|", "").count("|") for line in formats.markdown(plain).splitlines()]
    assert [line.replace("\\|", "").count("|") for line in formats.markdown(named).splitlines()] == bars
    lines = list(csv.reader(io.StringIO(formats.csv(named))))
    assert len(lines) == 2 * 4 * 2 + 3 + 1 + 1
    for line in lines:
        for cell in line:
            assert cell.isprintable()
            assert not re.match(r"\s*[=@＝]|[+-](?!\d+\.\d+$)", cell)
    figures = list(csv.DictReader(io.StringIO(formats.csv(plain))))
    assert [line[5:9] for line in lines[1:]] == [list(figure.values())[5:9] for figure in figures]  # no number changed

    console = Console(width=200, record=True, file=io.StringIO())
    monkeypatch.setattr(formats, "Console", lambda **options: console)
    formats.show(named)
    assert all(line.isprintable() for line in console.export_text().splitlines())
