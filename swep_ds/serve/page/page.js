"use strict";
// Texts, questions and names of files are anybody's: they become text nodes and values, never HTML.

const ANSWERS = 4; // that are asked for, the best one among them
const SHORT = 80; // UTF-16 units of a paragraph that says too little about an answer
const PAUSE = 200; // milliseconds without a key before names are searched
const NOWHERE = {text: null, start: null, end: null, version: null};
const byId = id => document.getElementById(id);
let state = {}; // the server's
let turn = 0; // of the questions asked: a reply to an earlier one is not shown
let open = {}; // what the viewer shows: {name, version, text}, name and version null for a context
let task = {}; // what the viewer is for: {question, asked, said, saved}; saved is called with the reply and the words
const skipped = new Map(); // from the id of a question to the number of labels at which it comes again
let latest = null; // the text that was asked for last
let changing = false; // whether a verdict is on its way

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const button = (label, onclick, className = "") => make("button", {type: "button", className, onclick}, label);

/** The reply to a request. Throws an `Error` whose message is a sentence. */
async function call(method, path, content) {
  const headers = content ? {"content-type": "application/json"} : {};
  let response;
  try {
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
function say(id, sentence) {
  if (byId(id).textContent !== sentence) byId(id).textContent = sentence;
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

const showCount = verdicts => (byId("count").textContent = `${count(verdicts, "verdict")} in ${state.output}.`);

// --- Verdicts ---

/** Saves or takes back a verdict: the server's reply, or after a failure null, and a sentence in `fault`. */
async function change(method, path, verdict, status, fault) {
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
    const refused = method === "POST" ? "Nothing was saved." : "The verdict is still there.";
    fault.textContent = `${error.message} ${error.cause ? "Look at the count of verdicts: it may not be saved." : refused}`;
    return null;
  } finally {
    changing = false;
  }
}

/** Buttons that give place to "Saved" and to a button that takes the verdict back. */
function verdictLine(...buttons) {
  const choices = make("div", {className: "buttons choices"}, ...buttons);
  const status = make("p", {className: "saved", role: "status"});
  const fault = make("p", {role: "alert"});
  const line = make("div", {}, choices, make("div", {className: "buttons"}, status), fault);
  line.saved = (id, sentence, undone) => {
    const undo = button("Undo", async () => {
      if (!await change("DELETE", `verdicts/${encodeURIComponent(id)}`, undefined, status, fault)) return;
      undo.remove();
      byId("answers").className = "";
      choices.querySelector("button")?.focus();
      undone?.();
    });
    status.textContent = `Saved: ${sentence}`;
    status.after(undo);
    byId("answers").className = "judged"; // a question gets one verdict
    undo.focus();
  };
  line.judge = async (verdict, sentence) => {
    const reply = await change("POST", "verdicts", verdict, status, fault);
    if (reply) line.saved(reply.id, sentence);
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
  const judge = (where, sentence) => line.judge({question, asked: null, ...where, said}, sentence);
  const view = (title, selected) => over(title, {question, said, line, answer, selected});
  const right = button("Right", () => judge({text, start, end, version}, "this answer is right."));
  const wrong = button("Wrong: mark the right words", () => view("Mark the right words", false));
  const silent = button("The texts do not say", () => judge(NOWHERE, "the texts do not say."));
  const read = button("Open the text", () => view("The answer in its text", true), "quiet");
  // A declined question has no place, nor has an answer that a model wrote in words of its own
  const line = start === null ? verdictLine(silent, wrong) : verdictLine(right, wrong, ...(best ? [silent] : []), read);
  const parts = answer.declined ? [answer.declined] : [text, ...place(answer), sure];
  const about = make("p", {className: "meta"}, ...parts.map(part => make("span", {dir: "auto"}, part)));
  return make("article", {className: best ? "card best" : "card", tabIndex: -1},
    make(best ? "h2" : "h4", {className: "answer", dir: "auto"}, answer.answer || "No answer"), about,
    ...(start === null ? [] : [quoted(answer)]), line);
}

async function ask(event) {
  event.preventDefault();
  const question = byId("question").value.trim();
  if (!question) return say("fault", "Type a question.");
  const mine = ++turn;
  byId("reading").textContent = "Reading the texts …";
  say("fault", "");
  try {
    const reply = await call("POST", "answer", {question, n_best: Math.min(ANSWERS, state.most)});
    if (mine !== turn) return;
    const others = reply.others.map(other => card(question, other, `probability ${percent(other.probability)}`, false));
    if (others.length) others.unshift(make("h3", {}, reply.declined ? "What it found anyway" : "Other answers"));
    const best = card(question, reply, `confidence ${percent(reply.confidence)}`, true);
    byId("answers").className = "";
    byId("answers").replaceChildren(best, ...others);
    best.focus();
  } catch (error) {
    if (mine !== turn) return;
    byId("answers").replaceChildren();
    say("fault", error.message);
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
  area.value = value.slice(0, start); // its height is where the words begin
  const above = area.scrollHeight;
  area.value = value;
  area.setSelectionRange(start, end);
  area.focus();
  area.scrollTop = above > area.clientHeight ? above - area.clientHeight / 2 : 0;
  showMarked();
}

async function openText(name, start, end = start) {
  const mine = latest = {}; // a text that is chosen later is shown, whichever comes first
  byId("viewer-fault").textContent = "";
  try {
    const {text, version} = await call("POST", "text", {name});
    if (mine === latest) show(name, version, text, toUnits(text, start), toUnits(text, end));
  } catch (error) {
    if (mine === latest) byId("viewer-fault").textContent = error.message;
  }
}

/** The marked words and their UTF-16 units without blanks at both ends, or "". */
function marked() {
  const {selectionStart, selectionEnd} = byId("text");
  const selected = open.text?.slice(selectionStart, selectionEnd) ?? "";
  const words = selected.trim();
  const start = selectionStart + selected.length - selected.trimStart().length;
  return words && {start, end: start + words.length, words};
}

function showMarked() {
  const span = marked();
  byId("mark").disabled = !span;
  byId("marked").textContent = span ? `Marked: “${span.words}”` : "Nothing is marked yet.";
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
    const path = part ? `texts?${query({part})}` : `passages?${query({question: task.question})}`;
    const {names, count: all, passages} = await call("GET", path);
    if (mine !== task || part !== byId("part").value) return;
    if (part) {
      const note = names.length < all ? `The first ${names.length} of ${all}.` : `${count(all, "text")}.`;
      showList("Texts", names.map(name => ({name, parts: [], start: 0})), note);
      return;
    }
    const entries = passages.map(passage => ({name: passage.text, start: passage.start,
      parts: [place(passage).join(" · "), passage.passage.trim().slice(0, 300)].filter(Boolean)}));
    showList("Passages found for the question", entries, entries.length ? "" : "The search finds none.");
    if (opens && entries.length) byId("list").querySelector("button").click();
    else if (opens) byId("part").focus();
  } catch (error) {
    if (mine === task) byId("viewer-fault").textContent = error.message;
  }
}

/** Makes the viewer ready for a question, with no text in it. */
function prepare(title, next) {
  task = next;
  open = {};
  latest = null;
  for (const id of ["text", "part"]) byId(id).value = "";
  for (const id of ["viewer-fault", "saving", "name"]) byId(id).textContent = "";
  byId("viewer-title").textContent = title;
  byId("viewer-question").textContent = task.question;
  showList("", [], "");
  showMarked();
}

/** The viewer over the page, at an answer if there is one, with its words selected or only in sight. */
function over(title, {question, said, line, answer, selected}) {
  const saved = (reply, words) => {
    if (task.said === said) byId("over").close();
    line.saved(reply.id, words ? `the right words are “${words}”.` : "the texts do not say.");
  };
  prepare(title, {question, asked: null, said, saved});
  byId("over").showModal();
  find("", answer.start === null);
  if (answer.start !== null) openText(answer.text, answer.start, selected ? answer.end : answer.start);
}

/** Saves that the words of a span answer the question, or, with null, that no words do. */
async function judge(span) {
  const {question, asked, said, saved} = task;
  const {name, version, text} = open;
  const where = span && {text: name, version, start: toPoints(text, span.start), end: toPoints(text, span.end)};
  const verdict = {question, asked, ...(where || NOWHERE), said};
  const reply = await change("POST", "verdicts", verdict, byId("saving"), byId("viewer-fault"));
  if (reply) saved(reply, span && span.words);
}

// --- Labelling ---

function bar({low, mean, high}) {
  const [interval, middle] = [make("i"), make("b")];
  Object.assign(interval.style, {left: `${low}%`, width: `${high - low}%`});
  middle.style.left = `${mean}%`;
  return make("div", {className: "bar", ariaHidden: "true"}, interval, middle); // its numbers are beside it
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

async function nextQuestion() {
  say("fault", "");
  try {
    for (const [id, labels] of skipped) if (labels <= byId("progress").value) skipped.delete(id);
    const skip = query([...skipped.keys()].map(id => ["skip", id]));
    const {asked, question, context, scores} = await call("GET", `next?${skip}`);
    showScores(scores);
    if (skipped.has(asked)) skipped.clear(); // all others are labelled: the round begins anew
    byId("viewer").hidden = asked === null;
    byId("revealed").replaceChildren();
    byId("task-question").textContent = question ?? `All ${count(scores.questions, "question")} are labelled`;
    if (asked === null) return byId("task-question").focus();
    prepare("", {question, asked, said: null, saved: reveal});
    byId("choice").hidden = context !== null;
    byId("silent").textContent = context === null ? "The texts do not say" : "The text does not say";
    if (context === null) find("", true);
    else show(null, null, context, 0, 0);
  } catch (error) {
    say("fault", error.message);
  }
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
  line.saved(reply.id, words ? `“${words}”.` : `${byId("silent").textContent.toLowerCase()}.`, () => {
    byId("revealed").replaceChildren();
    byId("viewer").hidden = false;
    byId("text").focus();
  });
  next.focus();
}

// --- The start ---

function describe() {
  const {mode, model, folder, texts, left_out: left} = state;
  document.title = mode === "ask" ? `Ask the texts of ${folder}` : "Label questions";
  byId("title").textContent = document.title;
  byId("about").textContent = [model, folder !== null && count(texts, "text")].filter(Boolean).join(" · ");
  byId("left-out").hidden = !left.length;
  byId("left-out").querySelector("summary").textContent = `${count(left.length, "file")} left out`;
  byId("left-out").querySelector("ul").replaceChildren(...left.map(sentence => make("li", {dir: "auto"}, sentence)));
  showCount(state.verdicts);
  byId("kept").hidden = false;
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
  if (state.mode === "ask") {
    byId("asking").hidden = false;
    byId("skip").hidden = true;
    byId("question").focus();
    return;
  }
  byId("labelling").hidden = false;
  byId("viewer-head").hidden = true;
  byId("task").append(byId("viewer"));
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
byId("text").addEventListener("input", () => (byId("text").value = open.text ?? "")); // by an input method
document.addEventListener("selectionchange", showMarked);
byId("mark").addEventListener("click", () => judge(marked()));
byId("silent").addEventListener("click", () => judge(null));
byId("skip").addEventListener("click", () => {
  if (changing) return; // the verdict on this question is on its way
  skipped.set(task.asked, byId("progress").value + 5);
  nextQuestion();
});
byId("close").addEventListener("click", () => byId("over").close());
start();
