"""The paper's analyses of what noise does to words, each by the name of its command (`swep-ds analyze`).

`words` is the curve of changed words over training (Eq. 6), `heatmap` the l2 heat map and Figure 1, `tsne` the tokens
before and after perturbation, and `frequency` the table by word frequency. In a heat map a word is a whitespace word of
the text. Its distance is the mean over its tokens of the l2 distance between e_t and e~_t, and over draws of the noise
(`TrainedRun.draws`), in the units of the word-embedding table.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from swep_ds.analysis.answered import Answered, in_fixed_order
from swep_ds.analysis.figures import COLOURS, MARKS
from swep_ds.analysis.formats import to_csv
from swep_ds.analysis.paper import PAPER
from swep_ds.analysis.trained_run import AnswerWindow, TextWord, TrainedRun, answer_windows
from swep_ds.common.errors import InputError
from swep_ds.common.files import read_json, read_lines
from swep_ds.common.pages import template
from swep_ds.data.example import Example
from swep_ds.data.windows import plain_backend
from swep_ds.methods.noise_effect import nearest
from swep_ds.pipeline.folder import METRICS_FILE, RunFolder

SHARES = ["words_changed", "words_changed_clean"]
AROUND = 20  # words of the text that a report shows before and after the answer
MAX_BYTES = 4 * 10**9  # for a model that is loaded for a report
TRIED = 50  # questions of a data set that are looked at for windows with the answer
SPACES = {"word": "Word embeddings", "contextual": "Contextual embeddings (last hidden state)"}
WHEN = {"before": COLOURS[0], "after": COLOURS[1]}
MAX_TOKENS = 500  # points of a t-SNE in either state
PERPLEXITY = 30.0
LABELLED = 12  # tokens with their text, at most
BANDS = ((0, 100), (100, 500), (500, 5_000), (5_000, 10_000))  # ranks (first, last], as in the paper
NEIGHBOURS = 5
COLUMNS = ["neighbour_distance", "moved_distance", "mu"]
ROWS = 256  # words whose distances to the whole table are in memory at a time


class Made(NamedTuple):
    """What an analysis gives: the texts and the figures of its files, by name, and lines to print."""

    texts: dict[str, str]
    lines: list[str]
    figures: Mapping[str, Figure] = {}


def words(runs: Sequence[Path], augmented: Path | None) -> Made:
    """The curve of changed words of the runs (`curves`) and, from a file of `swep-ds augment`, SSMBA's share. Raises
    InputError: as `curves`; no such file, or one that the command did not write."""
    table = curves(runs)
    lines = []
    for run, row in table.groupby("run", sort=False).last().iterrows():
        changed = f"{row.words_changed:.2%} of the tokens at update {row['update']}"
        lines.append(f"{run}: {changed}, {row.words_changed_clean:.2%} before perturbation")
    samples = None
    if augmented:  # made once, before training: the share of tokens that differ between samples and questions
        content = read_json(augmented, f"--augmented {augmented}", unique_keys=False)
        if not isinstance(content, dict) or "ssmba" not in content:
            raise InputError(f"--augmented {augmented}: not written by `swep-ds augment`: name a file of its samples")
        samples = content["ssmba"]["changed"] / content["ssmba"]["tokens"]
        lines.append(f"SSMBA's texts: {samples:.2%}")
    return Made({"words.csv": to_csv(table)}, lines, {"words": plot_curves(table, samples)})


def curves(runs: Sequence[Path]) -> pd.DataFrame:
    """The share of tokens whose perturbed embedding is nearest to another word, in [0, 1], as runs logged it: run,
    method, seed, update and `SHARES` of each logged update. Raises InputError: a folder without a run, or a run that
    logged no such share."""
    tables = []
    for folder in runs:
        recipe = RunFolder(folder).read_recipe()
        table = pd.DataFrame(read_lines(folder / METRICS_FILE), columns=["run", "method", "seed", "update", *SHARES])
        table = table.assign(run=str(folder), method=recipe.method.name, seed=recipe.seed).dropna()
        if table.empty:
            raise InputError(
                f"{folder / METRICS_FILE}: holds no words_changed: {recipe.method.name} changes no embeddings, or the "
                "run has not begun to train: name a run of swep, prior_aug, adv_aug or the like"
            )
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def plot_curves(table: pd.DataFrame, samples: float | None) -> Figure:
    """A line per run, a broken one for its clean embeddings, and a level for SSMBA's texts; in percent."""
    figure = Figure(layout="constrained", figsize=(7.2, 4.4))
    axes = figure.subplots()
    runs = table.groupby(["method", "run"], sort=False)
    for ((method, run), lines), colour, mark in zip(runs, cycle(COLOURS), cycle(MARKS), strict=False):
        label = f"{method}, {run}"
        update = lines["update"]
        axes.plot(update, 100 * lines[SHARES[0]], marker=mark, markevery=0.1, ms=4, lw=1.8, label=label, color=colour)
        label += ", before perturbation"
        axes.plot(update, 100 * lines[SHARES[1]], ls=(0, (4, 3)), lw=1.2, label=label, color=colour)
    if samples is not None:
        axes.axhline(100 * samples, color="#555555", ls=":", lw=1.8, label="SSMBA's texts")
    axes.set(xlabel="update", ylabel="tokens nearest to another word (%)", ylim=(0, None))
    axes.set_title("Words changed by the perturbation, in training")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure


def chosen_windows(
    folder: Path, data: str | None, questions: Sequence[str] | None, first: int
) -> tuple[TrainedRun, list[AnswerWindow]]:
    """The run, and the windows of the questions with these ids in the test set `data` (None = its first), or else of
    the `first` questions with an answer in a window. Raises InputError: as `TrainedRun`, or there is no such window."""
    run = TrainedRun.load(folder)
    examples = run.test_examples(data)
    if not questions:
        windows = list(islice(answer_windows(examples, run.tokenizer, run.windows), first))
        if not windows:
            raise InputError(f"{folder}: no question of {data or 'its source domain'} has an answer")
        return run, windows
    asked = [example for example in examples if example.id in questions]
    windows = {window.example.id: window for window in answer_windows(asked, run.tokenizer, run.windows)}
    for id_ in questions:
        if id_ not in windows:
            raise InputError(f"--questions {id_}: no such question, or no window holds its answer: name another")
    return run, [windows[id_] for id_ in questions]


def heatmap(runs: Sequence[Path], data: str | None, questions: Sequence[str] | None, first: int) -> Made:
    """How far each word of the questions moves, and to which word. Arguments and errors as `chosen_windows`."""
    run, windows = chosen_windows(runs[0], data, questions, first)
    html = page([window.example.id for window in windows], word_distances(run, windows), run.recipe.title, run.draws)
    tokens = nearest_words(run, windows)
    changed = tokens["token"] != tokens["nearest_after"]
    counts = changed.groupby(tokens["question_id"], sort=False).agg(["sum", "size"])
    lines = [f"{id_}: {count} of {all_} tokens are nearest to another word" for id_, count, all_ in counts.itertuples()]
    return Made({"heatmap.html": html, "changed_words.csv": to_csv(tokens[changed])}, lines)


class Scale(NamedTuple):
    """The distances of the first and of the last colour; what lies beyond has their colours."""

    low: float
    high: float
    # ColorBrewer's YlOrRd, light to dark, up to where black text stays readable
    colours = ("#ffffcc", "#ffeda0", "#fed976", "#feb24c", "#fd8d3c", "#fc4e2a")

    @classmethod
    def of(cls, texts: Sequence[Sequence[TextWord]]) -> "Scale":
        """From the 2nd to the 98th percentile, so outliers do not stretch it."""
        low, high = np.percentile([word.distance for words in texts for word in words], [2, 98]).tolist()
        return cls(low, high if high > low else low + 1.0)

    def colour(self, distance: float) -> str:
        stops = np.linspace(self.low, self.high, len(self.colours))
        channels = np.transpose([to_rgb(colour) for colour in self.colours])
        return to_hex([np.interp(distance, stops, channel) for channel in channels])


def word_distances(run: TrainedRun, windows: Sequence[AnswerWindow]) -> list[list[TextWord]]:
    """The words of each window with their distances. Raises InputError as `TrainedRun.perturb`."""
    texts = []
    for window in windows:
        before, draws = run.perturb(run.batch([window]), run.draws)
        distance_NT = sum((draw.embeddings - before).norm(dim=-1) for draw in draws) / run.draws
        distance_T = distance_NT[0].double().cpu().numpy()
        texts.append([word._replace(distance=distance_T[word.positions].mean()) for word in window.words])
    return texts


def nearest_words(run: TrainedRun, windows: Sequence[AnswerWindow]) -> pd.DataFrame:
    """The paper's Figure 1: question_id, part, word, token, nearest_before and nearest_after of each token of the
    windows' words. By `nearest`, a word need not be nearest to itself. Raises InputError as `TrainedRun.perturb`."""
    rows = []
    for window in windows:
        before, [perturbed] = run.perturb(run.batch([window]))
        ids = [window.input_ids]
        for embeddings in (before, perturbed.embeddings):
            ids.append(nearest(embeddings[0], run.qa.words, run.qa.words.num_embeddings).tolist())
        tokens = [run.tokenizer.convert_ids_to_tokens(row) for row in ids]
        for word in window.words:
            for at in word.positions:
                rows.append((window.example.id, word.part, word.text, *(row[at] for row in tokens)))
    return pd.DataFrame(rows, columns=["question_id", "part", "word", "token", "nearest_before", "nearest_after"])


def page(titles: Sequence[str], texts: Sequence[Sequence[TextWord]], heading: str, draws: int) -> str:
    """An HTML page of several examples under one colour scale."""
    macros = template("analysis/heatmap.html.jinja").module
    return str(macros.page(heading, list(zip(titles, texts, strict=True)), Scale.of(texts), draws))


def heat_maps(folder: Path, answered: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """Heat maps of a question that was answered right and one that was answered wrong by data set, for a report.

    "maps": by data set, these questions with their words; "missing": why there are none. Where there are some, "scale",
    of all of them, and "draws".
    """
    size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    if size > MAX_BYTES:
        missing = "The model is not loaded again, since it is large. `swep-ds analyze` makes heat maps."
        return {"maps": {}, "missing": missing}
    maps = {}
    texts = []
    try:
        run = TrainedRun.load(folder)
        for name, items in answered.items():
            for right in (True, False):
                pool = {item.example: item for item in in_fixed_order(items) if item.right == right}
                # an answer may be in the text only after normalisation, or in no window
                window = next(answer_windows(list(pool)[:TRIED], run.tokenizer, run.windows), None)
                if window:
                    texts += word_distances(run, [window])
                    maps.setdefault(name, []).append((pool[window.example], _near_answer(texts[-1])))
    except InputError as error:
        return {"maps": {}, "missing": str(error)}
    if not maps:
        return {"maps": {}, "missing": "No window holds an answer."}
    return {"maps": maps, "missing": "", "scale": Scale.of(texts), "draws": run.draws}


def _near_answer(words: Sequence[TextWord]) -> list[TextWord]:
    """The question's words, and at most `AROUND` of the context before and after the answer."""
    question = [word for word in words if word.part == "question"]
    context = words[len(question) :]
    in_answer = [number for number, word in enumerate(context) if word.part == "answer"]
    return question + context[max(0, in_answer[0] - AROUND) : in_answer[-1] + 1 + AROUND]


def tsne(runs: Sequence[Path], data: str | None, questions: Sequence[str] | None, first: int) -> Made:
    """t-SNE of the questions' tokens. Arguments and errors as `chosen_windows` and `coordinates`."""
    run, windows = chosen_windows(runs[0], data, questions, first)
    table = coordinates(run, windows)
    return Made({"tsne.csv": to_csv(table)}, [], {"tsne": plot_coordinates(table, run.recipe.title)})


def coordinates(run: TrainedRun, windows: Iterable[AnswerWindow]) -> pd.DataFrame:
    """Two rows, "before" and "after", for each token and space: space, when, question, position, token, x, y.

    The tokens are those of question and context, without special ones; if there are more than `MAX_TOKENS`, a
    random part of them. The perplexity is 30, or a third of the points if that is less. Raises InputError:
    scikit-learn is not installed; as `TrainedRun.perturb`.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise InputError("scikit-learn is not installed: pip install scikit-learn") from None
    tokens = []
    vectors = defaultdict(list)  # by space and when
    for window in windows:
        batch = run.batch([window])
        before, [perturbed] = run.perturb(batch)
        texts = run.tokenizer.convert_ids_to_tokens(window.input_ids)
        tokens += [(window.example.id, position, texts[position]) for position in window.positions]
        for when, embeddings in (("before", before), ("after", perturbed.embeddings)):
            for space, values in (("word", embeddings), ("contextual", run.hidden(embeddings, batch))):
                vectors[space, when].append(values[0, window.positions].cpu().numpy())
    count = min(len(tokens), MAX_TOKENS)
    kept = np.sort(np.random.default_rng(0).choice(len(tokens), count, replace=False))
    about = pd.DataFrame(tokens, columns=["question", "position", "token"]).iloc[kept]
    tables = []
    for space in SPACES:
        points = np.concatenate([np.concatenate(vectors[space, when])[kept] for when in WHEN])
        perplexity = min(PERPLEXITY, (len(points) - 1) / 3)
        embedded = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points)
        for when, part in zip(WHEN, np.split(embedded, len(WHEN)), strict=True):
            tables.append(about.assign(space=space, when=when, x=part[:, 0], y=part[:, 1]))
    return pd.concat(tables, ignore_index=True)[["space", "when", *about, "x", "y"]]


def plot_coordinates(table: pd.DataFrame, heading: str) -> Figure:
    """A square panel per space: a dot before joined to a triangle after. The tokens that move farthest carry texts."""
    figure = Figure(layout="constrained", figsize=(11, 5.4))
    panels = figure.subplots(1, len(SPACES))
    for axes, letter, (space, title) in zip(panels, "ab", SPACES.items(), strict=True):
        of_space = table[table["space"] == space]
        ends = [of_space.loc[of_space["when"] == when, ["x", "y"]].to_numpy() for when in WHEN]
        axes.add_collection(LineCollection(np.stack(ends, 1), colors="#999999", linewidths=0.6, alpha=0.6, zorder=1))
        for points, (when, colour), marker in zip(ends, WHEN.items(), "o^", strict=True):
            style = {"s": 16, "color": colour, "alpha": 0.75, "linewidths": 0, "zorder": 2}
            axes.scatter(*points.T, marker=marker, label=f"{when} perturbation", **style)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2", box_aspect=1)
        axes.set_aspect("equal", adjustable="datalim")  # every panel is a square with one scale on both axes
        axes.set_title(f"{letter}  {title}", loc="left", fontsize=11)
        _label(axes, *ends, of_space.loc[of_space["when"] == "after", "token"].tolist())
    figure.suptitle(f"{heading} ({len(ends[0])} tokens)", fontsize=12, parse_math=False)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _label(axes: Axes, before: np.ndarray, after: np.ndarray, tokens: list[str]) -> None:
    apart = np.ptp(after, axis=0).max() / 4  # so that no text covers another
    labelled: list[int] = []
    for number in np.argsort(-np.linalg.norm(after - before, axis=1), kind="stable"):
        if len(labelled) < LABELLED and (abs(after[labelled] - after[number]).max(1) > apart).all():
            labelled.append(number)
            side, shift = ("right", -3) if after[number, 0] > after[:, 0].max() - apart else ("left", 3)
            style = {"fontsize": 8, "ha": side, "textcoords": "offset points", "parse_math": False}
            axes.annotate(tokens[number], after[number], (shift, 3), in_layout=False, **style)


def frequency(runs: Sequence[Path], windows: int) -> Made:
    """The table by word frequency (`by_frequency`) of a run on so many training windows, with the paper's rows."""
    run = TrainedRun.load(runs[0])
    table = by_frequency(run, run.training_examples(), windows)
    text = markdown(table, run.recipe.title)
    return Made({"frequency.md": text, "frequency.json": json.dumps(table, indent=2) + "\n"}, [text.rstrip()])


def by_frequency(run: TrainedRun, examples: Sequence[Example], max_windows: int) -> dict[str, Any]:
    """How isolated a word's embedding is, and how far the noise moves it, by word frequency.

    Words are tokens, ranked by how often they occur in the distinct questions and contexts of the training data.

    Args:
        examples: the training questions; windows of `max_windows` of them, evenly spaced, are perturbed.

    Returns {"bands": [{"ranks": [first, last], "words", "words_seen", *COLUMNS}], "windows", "method",
    "beta_schedule"}, the columns of each band of ranks:
        neighbour_distance: mean over its words of the mean l2 distance to the 5 nearest other rows of the table
        moved_distance: mean over its words in the perturbed windows of a word's mean l2 distance between e and e~
        mu: likewise, the mean over dimensions of mu, for methods that learn it
    A value is None if a band has no words, or the method no mu. Raises InputError as `TrainedRun.perturb`.
    """
    chosen = [examples[k] for k in np.unique(np.linspace(0, len(examples) - 1, max_windows).astype(int))]
    windows = list(answer_windows(chosen, run.tokenizer, run.windows))
    if not windows:
        raise InputError(f"{run.folder}: no window holds an answer to {len(chosen)} questions: raise --windows")
    ranked = ranking(run, examples)[: BANDS[-1][1]]
    words = _means_by_word(run, windows).reindex(index=ranked, columns=COLUMNS)
    words["neighbour_distance"] = neighbour_distance(run.qa.model.get_input_embeddings().weight, ranked)
    bands = []
    for first, last in BANDS:
        of_band = words.iloc[first:last]
        seen = int(of_band["moved_distance"].count())
        means = {name: None if np.isnan(mean) else mean for name, mean in of_band.mean().items()}
        bands.append({"ranks": [first + 1, last], "words": len(of_band), "words_seen": seen} | means)
    table = {"bands": bands, "windows": len(windows), "method": run.recipe.method.name}
    if run.recipe.method.name == "swep":
        table["beta_schedule"] = run.recipe.method.beta_schedule
    return table


def ranking(run: TrainedRun, examples: Sequence[Example]) -> list[int]:
    """Ids of the tokens in the distinct questions and contexts, the most frequent first; ties by smaller id."""
    backend = plain_backend(run.tokenizer)
    counts = Counter()
    for text in {text for example in examples for text in (example.question, example.context)}:
        counts.update(backend.encode(text, add_special_tokens=False).ids)
    return sorted(counts, key=lambda token: (-counts[token], token))


@torch.no_grad()
def neighbour_distance(table: Tensor, words: Sequence[int]) -> np.ndarray:
    """Mean l2 distance of the rows `words` to their `NEIGHBOURS` nearest other rows, [len(words)] float64."""
    table = table.double()
    means = []
    for ids in torch.tensor(words, device=table.device).split(ROWS):
        distance = torch.cdist(table[ids], table)
        distance[torch.arange(len(ids)), ids] = torch.inf  # a row is not its own neighbour
        means.append(distance.topk(NEIGHBOURS, largest=False).values.mean(1).cpu())
    return torch.cat(means).numpy()


def _means_by_word(run: TrainedRun, windows: Sequence[AnswerWindow]) -> pd.DataFrame:
    """By the id of each token in the windows: its mean l2 distance before and after, and its mean mu if any."""
    frames = []
    for window in windows:
        before, [perturbed] = run.perturb(run.batch([window]))
        values = {"moved_distance": (perturbed.embeddings - before).norm(dim=-1), **perturbed.measure()}
        values = {name: values[name][0].double().cpu().numpy() for name in COLUMNS if name in values}
        frames.append(pd.DataFrame(values, index=window.input_ids).iloc[window.positions])
    return pd.concat(frames).groupby(level=0).mean()


def markdown(table: dict[str, Any], title: str) -> str:
    """The table with the paper's rows; a dash marks a missing value."""
    return template("analysis/frequency.md.jinja").render(table, title=title, paper=PAPER["by_frequency"])
