"use strict";
// Texts, questions and names of files are anybody's: they become text nodes and values, never HTML.

const ANSWERS = 4; // that are asked for, the best one among them
const SHORT = 80; // UTF-16 units of a paragraph that says too little about an answer
const PAUSE = 200; // milliseconds without a key before names are searched
const LONG = 30; // words
// by mark those with which it makes a pair
const PAIRS = {"(": /\)/, ")": /\(/, "[": /]/, "]": /\[/, '"': /"/, "“": /[”„]/, "”": /[“„]/, "«": /»/, "»": /«/};
const LETTER = /^[\p{sc=Latin}\p{sc=Greek}\p{sc=Cyrillic}\u0300-\u036f\p{Nd}]$/u; // of words with blanks between them
const byId = id => document.getElementById(id);
let state = {}; // the server's
let turn = 0; // of the questions asked: a reply to an earlier one is not shown
let open = {}; // what the viewer shows: {name, version, text}, name and version null for a context
let task = {}; // what the viewer is for: {question, asked, said, saved}; saved is called with the reply and the words
const skipped = new Map(); // from the id of a question to the number of labels at which it comes again

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const button = (label, onclick, className = "") => make("button", {type: "button", className, onclick}, label);

/** The reply to a request. Throws an `Error` whose message is a sentence. */
async function call(method, path, content) {
  let response;
  try {
    const headers = {"content-type": "application/json"};
    response = await fetch(path, {method, headers, body: content && JSON.stringify(content)});
  } catch {
    throw new Error("The server cannot be reached. Start swep-ds serve again.", {cause: "lost"}); // may have done it
  }
  const reply = await response.json().catch(() => null);
  if (response.ok && reply !== null) return reply;
  const detail = reply?.detail ?? `The server failed with status ${response.status}`;
  throw new Error(detail.endsWith(".") ? detail : `${detail}.`, {cause: response.status >= 500 ? "lost" : null});
}

/** Says a sentence, once: a screen reader would read it out each time. */
function say(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

const showFault = text => say(byId("over").open ? "viewer-fault" : "fault", text);

/** The function `work`, which shows why it fails in place of throwing. */
const telling = work => async (...values) => {
  showFault("");
  try {
    return await work(...values);
  } catch (error) {
    showFault(error.message);
  }
};

// The server counts code points, a browser UTF-16 units, of which an emoji has two.
const toPoints = (text, units) => Array.from(text.slice(0, units)).length;
const toUnits = (text, points) => Array.from(text).slice(0, points).join("").length;

function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 100 && share < 1) return "over 99\u00a0%";
  return rounded === 0 && share > 0 ? "under 1\u00a0%" : `${rounded}\u00a0%`;
}

const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// --- Verdicts ---
const silent = () => (state.folder === null ? "The text does not say" : "The texts do not say");
const sentence = words => (words ? `The right words are “${words}”.` : `${silent()}.`);

function showCount(verdicts) {
  state.verdicts = verdicts;
  byId("count").textContent = `${count(verdicts, "verdict")} in ${state.output}`;
}

const isSaving = () => byId("saving").textContent !== "";

/** Saves or takes back a verdict: the server's reply, or, after a failure, undefined. */
const change = telling(async (method, path, verdict) => {
  if (isSaving()) return null; // pressed twice
  say("saving", "One moment …");
  const failed = error => {
    const what = error.cause ? "It may be done or not: look at the list of verdicts." : "Nothing has changed.";
    throw new Error(`${error.message} ${what}`);
  };
  const reply = await call(method, path, verdict).catch(failed).finally(() => say("saving", ""));
  showCount(reply.verdicts);
  if (reply.scores) showScores(reply.scores);
  return reply;
});

/** A verdict in a list, with a button that takes it back wherever the page shows it. */
function given(title, {id, question, words, time}, undone) {
  const undo = button("Undo", async () => {
    if (!await change("DELETE", `verdicts/${encodeURIComponent(id)}`)) return;
    for (const shown of document.querySelectorAll(".given li")) if (shown.dataset.id === id) shown.undone();
  });
  const when = new Date(time).toLocaleString("en-GB", {dateStyle: "long", timeStyle: "medium"});
  undo.ariaLabel = `Undo the verdict of ${when} on ${question}`;
  const item = make("li", {}, make("strong", {dir: "auto"}, title), make("span", {dir: "auto"}, sentence(words)),
    make("span", {className: "soft"}, when), undo);
  item.dataset.id = id;
  item.undone = () => {
    const place = item.closest("article")?.querySelector(".choices button") ?? byId("count");
    const focused = item.contains(document.activeElement);
    item.remove();
    if (focused) place.focus();
    if (focused && document.activeElement !== place) byId("count").focus(); // another saved verdict hides that button
    undone?.();
  };
  return item;
}

const showLatest = telling(async () => {
  if (!byId("verdicts").open) return;
  const {latest} = await call("GET", "verdicts");
  byId("latest").replaceChildren(...latest.map(verdict => given(verdict.question, verdict)));
  if (latest.length < state.verdicts) byId("latest").append(make("li", {}, `These are the latest ${latest.length}.`));
});

/** The verdicts on a question, and buttons for another one, which its saved verdict hides. */
function verdictLine(question, judged, ...buttons) {
  const list = make("ul", {className: "given", ariaLive: "polite"});
  const line = make("div", {}, list, make("div", {className: "buttons choices"}, ...buttons));
  list.append(...judged.map(verdict => given("Judged before.", verdict)));
  line.saved = ({id, text}, words, undone) => {
    const [earlier, more] = document.querySelectorAll("#answers .given li");
    const beside = earlier ? ` beside the earlier verdict${more ? "s" : ""}` : "";
    const title = `Saved${beside}${text ? `, with a passage of ${text} as its text` : ""}.`;
    const item = given(title, {id, question, words, time: Date.now()}, undone);
    item.className = "saved";
    list.append(item);
    item.querySelector("button").focus();
    showLatest();
  };
  return line;
}

// --- Asking ---
/** An answer in its paragraph, or in all of its passage if the paragraph is short. */
function quoted(answer) {
  const {passage, passage_start: first} = answer;
  const [start, end] = [answer.start, answer.end].map(place => toUnits(passage, place - first));
  let from = passage.lastIndexOf("\n\n", start) + 1;
  let until = (passage + "\n\n").indexOf("\n\n", end);
  if (until - from < SHORT) [from, until] = [0, passage.length];
  const before = (from || !first ? "" : "… ") + passage.slice(from, start).trimStart();
  const marked = make("mark", {}, passage.slice(start, end));
  return make("blockquote", {dir: "auto"}, before, marked, passage.slice(end, until).trimEnd());
}

const place = ({page, heading}) => [page && `page ${page}`, heading && `under “${heading}”`].filter(Boolean);

/** An answer in its passage, or why there is none, with the buttons of its verdict. */
function card(question, answer, sure, best) {
  const {text, start, end, version, probability, confidence = null} = answer;
  const said = {answer: answer.answer, text, start, end, version, probability, confidence};
  const save = async (where, words) => {
    const reply = await change("POST", "verdicts", {question, said, ...where});
    if (reply) line.saved(reply, words);
  };
  const view = (title, selected) => over(title, {question, said, line, answer, selected});
  const right = button("Right", () => save({text, start, end, version}, answer.answer));
  const wrong = button("Wrong: mark the right words", () => view("Mark the right words", false));
  const none = button(silent(), () => save({}, null));
  const read = button("Open the text", () => view("The answer in its text", true), "quiet");
  // A declined question has no place, nor has an answer that a model wrote in words of its own
  const choices = start === null ? [none, wrong] : [right, wrong, ...(best ? [none] : []), read];
  const line = verdictLine(question, answer.judged ?? [], ...choices);
  const parts = answer.declined ? [answer.declined] : [text, ...place(answer), sure];
  const about = make("p", {className: "meta"}, ...parts.map(part => make("span", {dir: "auto"}, part)));
  return make("article", {className: best ? "card best" : "card", tabIndex: -1},
    make(best ? "h2" : "h4", {className: "answer", dir: "auto"}, answer.answer || "No answer"), about,
    make("p", {dir: "auto"}, answer.remark ?? ""), ...(start === null ? [] : [quoted(answer)]), line);
}

const ask = telling(async event => {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question) throw new Error("Type a question.");
  const mine = ++turn;
  byId("reading").textContent = "Reading the texts …";
  const asked = call("POST", "answer", {question, n_best: Math.min(ANSWERS, state.most)});
  const reply = await asked.finally(() => mine === turn && say("reading", ""));
  if (mine !== turn) return;
  const others = reply.others.map(other => card(question, other, `probability ${percent(other.probability)}`, false));
  if (others.length) others.unshift(make("h3", {}, reply.declined ? "What it found anyway" : "Other answers"));
  const best = card(question, reply, `confidence ${percent(reply.confidence)}`, true);
  byId("answers").replaceChildren(best, ...others);
  best.focus();
});

// --- The viewer: a text in which words are marked, and the passages and names by which another is chosen ---
/** Shows a text with these UTF-16 units selected and in sight. */
function show(name, version, text, start, end) {
  // A textarea would make one character of each pair: this way offsets remain those of the text
  const value = text.replaceAll("\r\n", " \n").replaceAll("\r", "\n");
  open = {name, version, text: value};
  const area = byId("text");
  byId("name").textContent = name ?? "The text";
  area.value = value.slice(0, start); // its height is where the words begin
  const above = area.scrollHeight;
  area.value = value;
  area.setSelectionRange(start, end);
  area.focus();
  area.scrollTop = above > area.clientHeight ? above - area.clientHeight / 2 : 0;
  showMarked();
}

const openText = telling(async (name, start, end = start) => {
  const mine = task.wanted = {}; // a text that is chosen later is shown, whichever comes first
  const {text, version} = await call("POST", "text", {name});
  if (mine === task.wanted) show(name, version, text, toUnits(text, start), toUnits(text, end));
});

/** The marked words and their UTF-16 units, or "": whole words, without blanks, commas and lone brackets around them. */
function marked() {
  let {selectionStart: start, selectionEnd: end} = byId("text");
  const text = open.text ?? "";
  const isLone = mark => PAIRS[mark]?.test(text.slice(start, end).replace(mark, "")) === false;
  const cutsWord = place => LETTER.test(text[place - 1]) && LETTER.test(text[place]);
  while (start < end && (/\s/.test(text[start]) || isLone(text[start]))) start++;
  while (start < end && (/[\s,;:]/.test(text[end - 1]) || isLone(text[end - 1]))) end--;
  if (start === end) return "";
  while (cutsWord(start)) start--;
  while (cutsWord(end)) end++;
  return {start, end, words: text.slice(start, end)};
}

function showMarked() {
  const span = marked();
  byId("mark").disabled = !span;
  const long = span && span.words.split(/\s+/).length > LONG ? "That is long: mark as few words as answer it. " : "";
  byId("marked").textContent = span ? `${long}Marked: “${span.words}”` : "Nothing is marked yet.";
}

function showList(title, entries, note) {
  byId("list-title").textContent = title;
  byId("list-note").textContent = note;
  const items = entries.map(({name, parts = [], start = 0}) => {
    const entry = button("", () => {
      byId("list").querySelector("[aria-current]")?.removeAttribute("aria-current");
      entry.setAttribute("aria-current", "true");
      openText(name, start);
    });
    entry.append(make("strong", {dir: "auto"}, name), ...parts.map(part => make("span", {dir: "auto"}, part)));
    return make("li", {}, entry);
  });
  byId("list").replaceChildren(...items);
}

/** Lists the texts named by `part` and passages with its words, or those for the question: `opens` opens the first. */
const find = telling(async (part, opens) => {
  const mine = task;
  const {passages} = await call("GET", `passages?${new URLSearchParams({question: part || task.question})}`);
  const {names, count: all} = part ? await call("GET", `texts?${new URLSearchParams({part})}`) : {};
  if (mine !== task || part !== byId("part").value.trim()) return;
  const entries = passages.map(passage => ({name: passage.text, start: passage.start,
    parts: [place(passage).join(" · "), passage.passage.trim().slice(0, 300)].filter(Boolean)}));
  if (part) {
    const first = names.length < all ? `The first ${names.length} of ` : "";
    const note = `${first}${count(all, "text")} by name, ${count(entries.length, "passage")} by words.`;
    return showList("Texts and passages", [...names.map(name => ({name})), ...entries], note);
  }
  showList("Passages found for the question", entries, entries.length ? "" : "The search finds none.");
  if (opens && entries.length) byId("list").querySelector("button").click();
  else if (opens) byId("part").focus();
});

/** Makes the viewer ready for a question, with no text in it. */
function prepare(title, next) {
  task = next;
  open = {};
  for (const id of ["text", "part"]) byId(id).value = "";
  for (const id of ["viewer-fault", "name"]) byId(id).textContent = "";
  byId("viewer-title").textContent = title;
  byId("viewer-question").textContent = task.question;
  showList("", [], "");
  showMarked();
}

/** The viewer over the page, at an answer if there is one, with its words selected or only in sight. */
function over(title, {question, said, line, answer, selected}) {
  const saved = (reply, words) => {
    if (task.said === said) byId("over").close();
    line.saved(reply, words);
  };
  prepare(title, {question, said, saved});
  byId("over").showModal();
  find("", answer.start === null);
  if (answer.start !== null) openText(answer.text, answer.start, selected ? answer.end : answer.start);
}

/** Saves that the words of a span answer the question, or, with null, that no words do. */
async function judge(span) {
  const {question, asked, said, saved} = task;
  const {name, version, text} = open;
  const where = span && {text: name, version, start: toPoints(text, span.start), end: toPoints(text, span.end)};
  const reply = await change("POST", "verdicts", {question, asked, said, ...where});
  if (reply) saved(reply, span && span.words);
}

// --- Labelling ---
function bar({low, mean, high}) { // hidden, as its numbers are beside it
  const interval = make("i", {style: `left: ${low}%; width: ${high - low}%`});
  return make("div", {className: "bar", ariaHidden: "true"}, interval, make("b", {style: `left: ${mean}%`}));
}

function showScores({labelled, waiting, least, questions, exact_match: exact, f1}) {
  byId("labelled").textContent = `${labelled} of ${questions} labelled`;
  Object.assign(byId("progress"), {max: questions || 1, value: labelled});
  const rows = [["Exact match", exact], ["F1", f1]].filter(([, score]) => score).map(([name, score]) => {
    const numbers = `${score.mean.toFixed(1)} % (${score.low.toFixed(1)} to ${score.high.toFixed(1)})`;
    return make("div", {}, make("strong", {}, name), make("span", {}, numbers), bar(score));
  });
  byId("intervals").replaceChildren(...rows);
  let more = `Exact match and F1 are shown after ${least} labels: ${Math.max(least - labelled, 0)} more.`;
  if (f1) more = "F1 is known to within 3 points.";
  if (f1?.more_labels) more = `${f1.more_labels} more such labels would give F1 to within 3 points.`;
  if (waiting) more += ` Labels that wait for an earlier question, which comes again: ${waiting}.`;
  byId("more").textContent = more;
}

const nextQuestion = telling(async () => {
  for (const [id, labels] of skipped) if (labels <= byId("progress").value) skipped.delete(id);
  const skip = new URLSearchParams([...skipped.keys()].map(id => ["skip", id]));
  const {asked, question, context, scores} = await call("GET", `next?${skip}`);
  showScores(scores);
  if (skipped.has(asked)) skipped.clear(); // all others are labelled: the round begins anew
  byId("viewer").hidden = asked === null;
  byId("revealed").replaceChildren();
  byId("task-question").textContent = question ?? `All ${count(scores.questions, "question")} are labelled`;
  if (asked === null) return byId("task-question").focus();
  prepare("", {question, asked, saved: reveal});
  byId("choice").hidden = context !== null;
  if (context === null) find("", true);
  else show(null, null, context, 0, 0);
});

/** Shows what the runs answered, now that the verdict is saved. */
function reveal(reply, words) {
  const runs = reply.said.map(({run, answer, probability}) => {
    const said = answer ? make("q", {dir: "auto"}, answer) : "no answer";
    return make("li", {}, make("strong", {dir: "auto"}, run), ": ", said, `, ${percent(probability)}`);
  });
  const answers = make("div", {}, make("h3", {}, "What the model answered"), make("ul", {}, ...runs));
  const next = button("Next question", nextQuestion, "first");
  const line = verdictLine(task.question, []);
  byId("viewer").hidden = true;
  byId("revealed").replaceChildren(line, answers, next);
  line.saved(reply, words, () => {
    byId("revealed").replaceChildren();
    byId("viewer").hidden = false;
    byId("text").focus();
  });
  next.focus();
}

// --- The start ---
function describe() {
  const {mode, model, folder, texts, left_out: left} = state;
  document.title = byId("title").textContent = mode === "ask" ? `Ask the texts of ${folder}` : "Label questions";
  byId("about").textContent = [model, folder !== null && count(texts, "text")].filter(Boolean).join(" · ");
  byId("left-out").hidden = !left.length;
  byId("left-out").querySelector("summary").textContent = `${count(left.length, "file")} left out`;
  byId("left-out").querySelector("ul").replaceChildren(...left.map(sentence => make("li", {dir: "auto"}, sentence)));
  showCount(state.verdicts);
  byId("kept").hidden = false;
  byId("silent").textContent = silent();
}

async function start() {
  while (!state.ready) {
    try {
      state = await call("GET", "state");
      say("fault", "");
      say("loading", state.ready ? "" : state.doing || "Loading …");
    } catch (error) {
      say("fault", error.message);
    }
    if (!state.ready) await new Promise(done => setTimeout(done, 1000));
  }
  describe();
  const asks = state.mode === "ask";
  byId(asks ? "asking" : "labelling").hidden = false;
  byId("skip").hidden = asks;
  byId("viewer-head").hidden = !asks;
  if (asks) return byId("question").focus();
  byId("task").append(byId("viewer"));
  await nextQuestion();
}

let pause;
byId("ask").addEventListener("submit", ask);
byId("part").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => find(byId("part").value.trim(), false), PAUSE);
});
// `readonly` would take the caret away, and with it selection by keyboard
byId("text").addEventListener("beforeinput", event => event.preventDefault());
byId("text").addEventListener("input", () => (byId("text").value = open.text ?? "")); // by an input method
document.addEventListener("selectionchange", showMarked);
byId("mark").addEventListener("click", () => judge(marked()));
byId("silent").addEventListener("click", () => judge(null));
byId("skip").addEventListener("click", () => {
  if (isSaving()) return; // the verdict on this question is on its way
  skipped.set(task.asked, byId("progress").value + 5);
  nextQuestion();
});
byId("verdicts").addEventListener("toggle", showLatest);
byId("close").addEventListener("click", () => byId("over").close());
start();
