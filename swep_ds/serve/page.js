"use strict";
// Texts, questions and names of files are anybody's: they become text nodes and values, never HTML.

const ANSWERS = 4; // that are asked for, the best one among them
const PAUSE = 200; // milliseconds without a key before names are searched
const NOWHERE = {text: null, start: null, end: null, version: null};
const byId = id => document.getElementById(id);
let state = {}; // the server's
let turn = 0; // of the questions asked: a reply to an earlier one is not shown
let open = {}; // what the viewer shows: {name, version, text}, name and version null for a context
let task = {}; // what the viewer is for: {question, asked, said, saved}; saved is called with the reply and the words
let skipped = []; // ids of questions in mode label
let changing = false; // whether a verdict is on its way

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function button(label, press, className = "") {
  return make("button", {type: "button", className, onclick: press}, label);
}

/** The reply to a request. Throws an `Error` whose message is a sentence. */
async function call(method, path, content) {
  const headers = content ? {"content-type": "application/json"} : {};
  let response;
  try {
    response = await fetch(path, {method, headers, body: content && JSON.stringify(content)});
  } catch {
    throw new Error("The server cannot be reached.");
  }
  const reply = await response.json().catch(() => null);
  if (!response.ok || reply === null) {
    throw new Error(reply?.detail ?? `The server failed with status ${response.status}.`);
  }
  return reply;
}

function fail(sentence) {
  byId("fault").textContent = sentence;
  if (sentence) byId("fault").scrollIntoView({block: "nearest"});
}

const query = pairs => new URLSearchParams(pairs).toString();
// The server counts code points, a browser UTF-16 units, of which an emoji has two.
const toPoints = (text, units) => Array.from(text.slice(0, units)).length;
const toUnits = (text, points) => Array.from(text).slice(0, points).join("").length;

function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 100 && share < 1) return "over 99\u00a0%";
  return rounded === 0 && share > 0 ? "under 1\u00a0%" : `${rounded}\u00a0%`;
}

function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

function showCount(verdicts) {
  byId("count").textContent = `${count(verdicts, "verdict")} in ${state.output}.`;
}

// --- Verdicts ---

/** Saves or takes back a verdict: the server's reply, or after a failure null, and a sentence in `fault`. */
async function change(method, path, verdict, status, fault, otherwise) {
  if (changing) return null; // pressed twice
  changing = true;
  const said = status.textContent;
  status.textContent = "One moment …";
  fault.textContent = "";
  try {
    const reply = await call(method, path, verdict);
    status.textContent = "";
    showCount(reply.verdicts);
    if (reply.scores) showScores(reply.scores);
    return reply;
  } catch (error) {
    status.textContent = said;
    fault.textContent = `${error.message} ${otherwise}`;
    return null;
  } finally {
    changing = false;
  }
}

const save = (verdict, status, fault) => change("POST", "verdicts", verdict, status, fault, "Nothing was saved.");

/** Buttons that give place to "Saved" and to a button that takes the verdict back. */
function verdictLine(...buttons) {
  const choices = make("div", {className: "buttons"}, ...buttons);
  const status = make("p", {className: "saved", role: "status"});
  const fault = make("p", {role: "alert"});
  const line = make("div", {className: "verdict"}, choices, make("div", {className: "buttons"}, status), fault);

  line.saved = (id, sentence, undone) => {
    const undo = button("Undo", async () => {
      const path = `verdicts/${encodeURIComponent(id)}`;
      if (!await change("DELETE", path, undefined, status, fault, "The verdict is still there.")) return;
      undo.remove();
      choices.hidden = false;
      choices.querySelector("button")?.focus();
      undone?.();
    });
    status.textContent = `Saved: ${sentence}`;
    status.after(undo);
    choices.hidden = true;
    undo.focus();
  };
  line.judge = async (verdict, sentence) => {
    const reply = await save(verdict, status, fault);
    if (reply) line.saved(reply.id, sentence);
  };
  return line;
}

// --- Asking ---

function quoted(answer) {
  const {passage, passage_start: first} = answer;
  const [start, end] = [answer.start, answer.end].map(place => toUnits(passage, place - first));
  const marked = make("mark", {}, passage.slice(start, end));
  return make("blockquote", {dir: "auto"}, passage.slice(0, start), marked, passage.slice(end));
}

function place(answer) {
  return [answer.page && `page ${answer.page}`, answer.heading && `under “${answer.heading}”`].filter(Boolean);
}

/** An answer in its passage, or why there is none, with the buttons of its verdict. */
function card(question, answer, sure, best) {
  const {text, start, end, version, probability, confidence = null} = answer;
  const said = {answer: answer.answer, text, start, end, probability, confidence};
  const judge = (where, sentence) => line.judge({question, asked: null, ...where, said}, sentence);
  const view = (title, selected) => over(title, {question, said, line, answer, selected});
  const right = button("Right", () => judge({text, start, end, version}, "this answer is right."));
  const wrong = button("Wrong: mark the right words", () => view("Mark the right words", false));
  const silent = button("The texts do not say", () => judge(NOWHERE, "the texts do not say."));
  const read = button("Open the text", () => view("The answer in its text", true), "quiet");
  const line = text === null ? verdictLine(silent, wrong) : verdictLine(right, wrong, ...(best ? [silent] : []), read);
  const title = make(best ? "h2" : "h4", {className: "answer", dir: "auto"}, answer.answer || "No answer");
  const parts = [text, ...place(answer), sure].map(part => make("span", {dir: "auto"}, part));
  const shown = text === null
    ? [make("p", {}, answer.declined)]
    : [make("p", {className: "meta soft"}, ...parts), quoted(answer)];
  return make("article", {className: best ? "card best" : "card", tabIndex: -1}, title, ...shown, line);
}

async function ask(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question) return;
  const mine = ++turn;
  byId("reading").textContent = "Reading the texts …";
  fail("");
  try {
    const reply = await call("POST", "answer", {question, n_best: Math.min(ANSWERS, state.most)});
    if (mine !== turn) return;
    const others = reply.others.map(other => card(question, other, `probability ${percent(other.probability)}`, false));
    if (others.length) others.unshift(make("h3", {}, reply.declined ? "What it found anyhow" : "Other answers"));
    const best = card(question, reply, `confidence ${percent(reply.confidence)}`, true);
    byId("answers").replaceChildren(best, ...others);
    best.focus();
  } catch (error) {
    if (mine !== turn) return;
    byId("answers").replaceChildren();
    fail(error.message);
  }
  byId("reading").textContent = "";
}

// --- The viewer: a text in which words are marked, and the passages and names by which another is chosen ---

/** Shows a text with these UTF-16 units selected and in sight. */
function show(name, version, text, start, end) {
  // A textarea would make one character of each pair: this way offsets remain those of the text
  const value = text.replaceAll("\r\n", " \n").replaceAll("\r", "\n");
  open = {name, version, text: value};
  const area = byId("text");
  byId("name").textContent = name ?? "The text";
  area.value = value;
  area.value = value.slice(0, start); // its height is where the words begin
  const above = area.scrollHeight;
  area.value = value;
  area.setSelectionRange(start, end);
  area.focus({preventScroll: true});
  area.scrollTop = above > area.clientHeight ? above - area.clientHeight / 2 : 0;
  showMarked();
}

async function openText(name, start, end = start) {
  byId("viewer-fault").textContent = "";
  try {
    const {text, version} = await call("GET", `text?${query({name})}`);
    show(name, version, text, toUnits(text, start), toUnits(text, end));
  } catch (error) {
    byId("viewer-fault").textContent = error.message;
  }
}

/** The marked words' UTF-16 units without blanks at both ends, or null. */
function marked() {
  const {selectionStart, selectionEnd} = byId("text");
  const words = open.text?.slice(selectionStart, selectionEnd) ?? "";
  const start = selectionStart + words.length - words.trimStart().length;
  return words.trim() ? {start, end: start + words.trim().length} : null;
}

function showMarked() {
  const span = marked();
  byId("mark").disabled = !span;
  const words = span && open.text.slice(span.start, span.end);
  byId("marked").textContent = span ? `Marked: “${words}”` : "Nothing is marked yet.";
}

function showList(title, entries, note) {
  byId("list-title").textContent = title;
  byId("list-note").textContent = note;
  const items = entries.map(({name, parts, start}) => {
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

/** Lists the names with `part` in them, or the passages that the search finds, of which `opens` opens the first. */
async function find(part, opens) {
  const mine = task;
  try {
    if (part) {
      const {names, count: all} = await call("GET", `texts?${query({part})}`);
      const note = names.length < all ? `The first ${names.length} of ${all}.` : `${count(all, "text")}.`;
      if (mine === task && part === byId("part").value) {
        showList("Texts", names.map(name => ({name, parts: [], start: 0})), note);
      }
      return;
    }
    const {passages} = await call("GET", `passages?${query({question: task.question})}`);
    const entries = passages.map(passage => ({name: passage.text, start: passage.start,
      parts: [place(passage).join(" · "), passage.passage.trim()].filter(Boolean)}));
    if (mine !== task || byId("part").value) return;
    showList("Passages found for the question", entries, entries.length ? "" : "The search finds none.");
    if (opens) (byId("list").querySelector("button") ?? byId("part")).focus();
    if (opens) byId("list").querySelector("button")?.click();
  } catch (error) {
    if (mine === task) byId("viewer-fault").textContent = error.message;
  }
}

/** Makes the viewer ready for a question, with no text in it. */
function prepare(title, next) {
  task = next;
  open = {};
  byId("text").value = "";
  byId("part").value = "";
  for (const id of ["viewer-fault", "saving", "name"]) byId(id).textContent = "";
  byId("viewer-title").textContent = title;
  byId("viewer-question").textContent = task.question;
  showList("", [], "");
  showMarked();
}

/** The viewer over the page, at an answer if there is one, with its words selected or only in sight. */
function over(title, {question, said, line, answer, selected}) {
  const saved = (reply, words) => {
    byId("over").close();
    line.saved(reply.id, words === null ? "the texts do not say." : `the right words are “${words}”.`);
  };
  prepare(title, {question, asked: null, said, saved});
  byId("over").showModal();
  find("", answer.text === null);
  if (answer.text !== null) openText(answer.text, answer.start, selected ? answer.end : answer.start);
}

/** Saves that the words of a span, or with null none, are the answer. */
async function judge(span) {
  const {question, asked, said, saved} = task;
  const {name, version, text} = open;
  const [start, end] = span ? [span.start, span.end].map(units => toPoints(text, units)) : [];
  const where = span ? {text: name, start, end, version} : NOWHERE;
  const reply = await save({question, asked, ...where, said}, byId("saving"), byId("viewer-fault"));
  if (reply) saved(reply, span && text.slice(span.start, span.end));
}

// --- Labelling ---

function bar({low, mean, high}) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true"); // the numbers are beside it
  const parts = [["track", 0, 100, 6, 4], ["interval", low, high - low, 3, 10], ["mean", mean - 0.3, 0.6, 0, 16]];
  for (const [name, x, width, y, height] of parts) {
    const part = document.createElementNS(svg.namespaceURI, "rect");
    const places = {class: name, x: `${x}%`, width: `${width}%`, y, height};
    for (const [attribute, value] of Object.entries(places)) part.setAttribute(attribute, value);
    svg.append(part);
  }
  return svg;
}

function showScores({labelled, least, questions, exact_match: exact, f1}) {
  byId("labelled").textContent = `${labelled} of ${questions} labelled`;
  Object.assign(byId("progress"), {max: questions || 1, value: labelled});
  const rows = [["Exact match", exact], ["F1", f1]].filter(([, score]) => score).map(([name, score]) => {
    const numbers = `${score.mean.toFixed(1)} % (${score.low.toFixed(1)} to ${score.high.toFixed(1)})`;
    return make("div", {}, make("strong", {}, name), make("span", {}, numbers), bar(score));
  });
  byId("intervals").replaceChildren(...rows);
  let more = `Exact match and F1 are shown after ${least} labels: ${Math.max(least - labelled, 0)} more.`;
  if (f1) more = "F1 is known within 3 points.";
  if (f1?.more_labels) more = `${f1.more_labels} more such labels would give F1 within 3 points.`;
  byId("more").textContent = more;
}

async function nextQuestion() {
  fail("");
  let next;
  try {
    next = await call("GET", `next?${query(skipped.map(id => ["skip", id]))}`);
  } catch (error) {
    fail(error.message);
    return;
  }
  const {question, asked, context} = next;
  byId("viewer").hidden = asked === null;
  byId("revealed").replaceChildren();
  if (asked === null) {
    showEnd(next);
    return;
  }
  prepare("", {question, asked, said: null, saved: reveal});
  byId("task-question").textContent = question;
  byId("choice").hidden = context !== null;
  byId("silent").textContent = context === null ? "The texts do not say" : "The text does not say";
  if (context === null) find("", true);
  else show(null, null, context, 0, 0);
}

function showEnd({labelled, of}) {
  const left = of - labelled;
  const again = button("Go through the skipped questions", () => {
    skipped = [];
    nextQuestion();
  }, "first");
  const title = left ? `${count(left, "question")} skipped, all others labelled` : `All ${of} questions are labelled`;
  byId("task-question").textContent = title;
  byId("task-question").focus();
  byId("revealed").append(left ? again : make("p", {}, "The labels can be downloaded below."));
}

/** Shows what the runs answered, now that the verdict is saved. */
function reveal(reply, words) {
  const runs = reply.said.map(({run, answer, probability}) => {
    const said = answer ? make("q", {dir: "auto"}, answer) : "no answer";
    return make("li", {}, make("strong", {dir: "auto"}, run), ": ", said, `, ${percent(probability)}`);
  });
  const answers = make("div", {}, make("h3", {}, "What the model answered"), make("ul", {}, ...runs));
  const next = button("Next question", nextQuestion, "first");
  const line = verdictLine();
  byId("viewer").hidden = true;
  byId("revealed").replaceChildren(line, answers, next);
  line.saved(reply.id, words === null ? `${byId("silent").textContent.toLowerCase()}.` : `“${words}”.`, () => {
    byId("revealed").replaceChildren();
    byId("viewer").hidden = false;
    byId("text").focus();
  });
  next.focus();
}

// --- The start ---

function describe() {
  const {mode, model, folder, texts, left_out: left} = state;
  byId("title").textContent = mode === "ask" ? `Ask the texts of ${folder}` : "Label questions";
  document.title = byId("title").textContent;
  byId("about").textContent = [model, folder !== null && count(texts, "text")].filter(Boolean).join(" · ");
  byId("left-out").hidden = !left.length;
  byId("left-out").querySelector("summary").textContent = `${count(left.length, "file")} left out`;
  byId("left-out").querySelector("ul").replaceChildren(...left.map(sentence => make("li", {dir: "auto"}, sentence)));
  showCount(state.verdicts);
}

async function start() {
  while (!state.ready) {
    try {
      state = await call("GET", "state");
      fail(state.error ?? "");
      if (byId("loading").textContent !== state.doing) byId("loading").textContent = state.doing;
      if (state.error) break;
    } catch (error) {
      fail(error.message);
    }
    if (!state.ready) await new Promise(done => setTimeout(done, 1000));
  }
  byId("loading").textContent = "";
  if (!state.ready) return;
  describe();
  byId("kept").hidden = false;
  if (state.mode === "ask") {
    byId("asking").hidden = false;
    byId("skip").hidden = true;
    byId("question").focus();
    return;
  }
  byId("labelling").hidden = false;
  byId("viewer-head").hidden = true;
  byId("task").append(byId("viewer"));
  showScores(await call("GET", "scores"));
  await nextQuestion();
}

let pause;
byId("ask").addEventListener("submit", ask);
byId("part").addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => find(byId("part").value, false), PAUSE);
});
// `readonly` would take the caret away, and with it selection by keyboard
byId("text").addEventListener("beforeinput", event => event.preventDefault());
byId("text").addEventListener("input", () => { byId("text").value = open.text ?? ""; }); // by an input method
document.addEventListener("selectionchange", showMarked);
byId("mark").addEventListener("click", () => judge(marked()));
byId("silent").addEventListener("click", () => judge(null));
byId("skip").addEventListener("click", () => {
  skipped.push(task.asked);
  nextQuestion();
});
byId("close").addEventListener("click", () => byId("over").close());
start();
