// The page: what is written is asked, what comes back is shown; a newer question ends the older one.

import { ask } from "./ask.js";
import { shown, table } from "./compare.js";
import { absolve, blame, element, show, sift, write, written } from "./form.js";
import { remember, unpacked } from "./link.js";

const DEBOUNCE_MS = 90;
const byId = (id) => document.getElementById(id);

let forms, files = {}, running = null, timer = 0, kept = [], last = null, scenario = null;

const verb = () => byId("questions").querySelector("input:checked").value;
const question = () => ({ verb: verb(), words: written(), files: { ...files } });
const live = (asked) => asked.verb === "predict" && asked.words.subject && (asked.words.on || scenario);
const title = (asked) => `${asked.verb} ${asked.words.subject ?? ""} ${asked.words.on ?? ""}`.trim();

function say(text) { byId("status").textContent = text; }

// The number that the question is about, for people who do not see the answer change.
function headline(numbers) {
  const first = numbers.find((one) => "low" in one) ?? numbers[0];
  if (!first) return "";
  const between = "low" in first ? `, ${shown(first.low, first.unit)} to ${shown(first.high, first.unit)}` : "";
  return `${first.name.replace(/_s$/, "").replaceAll("_", " ")} ${shown(first.value, first.unit)}${between}. `;
}

function arrange() {
  show(forms.questions.find((one) => one.name === verb()), forms.names);
  rearrange();
}

function rearrange() {
  const serve = byId("word-serve");
  sift(serve ? serve.checked : null);
}

function heard(told, asked) {
  if (told.event === "progress") {
    byId("bar").hidden = false;
    if (told.share == null) byId("bar").removeAttribute("value");
    else byId("bar").value = told.share;
    if (byId("status").textContent !== `${told.text} ...`) say(`${told.text} ...`);
  } else if (told.event === "answer") {
    last = { question: asked, numbers: told.numbers, title: title(asked) };
    byId("answer").innerHTML = told.html;
    window.ridgelineEnliven(byId("answer"));
    byId("answer").classList.remove("old");
    byId("fault").hidden = true;
    byId("command").hidden = false;
    byId("command").querySelector("code").textContent = told.command;
    say(`${headline(told.numbers)}Answered in ${(1000 * told.seconds).toFixed(0)} ms. ${told.aside}`);
    compare();
  } else if (told.event === "refused") {
    const placed = blame(told, () => start());
    byId("fault").hidden = placed;
    byId("fault").textContent = told.error;
    say(placed ? `Not answered: ${told.error}` : "Not answered.");
  }
}

async function start() {
  clearTimeout(timer);
  running?.abort();
  const mine = running = new AbortController(), asked = question();
  absolve();
  remember(asked, kept.map((one) => one.question));
  byId("answer").classList.add("old");
  byId("cancel").hidden = asked.verb === "predict";
  try {
    await ask(asked, mine.signal, (told) => { if (running === mine) heard(told, asked); });
  } catch (error) {
    if (running === mine) say(error.name === "AbortError" ? "Stopped." : "The app does not answer; is it still running?");
  }
  if (running !== mine) return;
  running = null;
  byId("bar").hidden = byId("cancel").hidden = true;
}

function changed() {
  clearTimeout(timer);
  if (live(question())) timer = setTimeout(start, DEBOUNCE_MS);
  else { running?.abort(); say("Press Ask, or Enter."); }
}

function compare() {
  byId("compare").hidden = kept.length === 0;
  const columns = last ? [...kept, last] : kept;
  byId("compare").querySelector("table").replaceChildren(...table(columns, (index) => {
    kept.splice(index, 1);
    remember(question(), kept.map((one) => one.question));
    compare();
  }));
}

async function add(list) {
  for (const file of list) {
    const name = file.name.replace(/[^A-Za-z0-9_.-]/g, "_").replace(/^[.-]+/, "") || "file";
    const text = await file.text();
    if (name.endsWith(".toml") && await open(name, text)) continue;
    files[name] = text;
    place(name, text);
  }
  list_files();
  changed();
}

// A scenario fills the form where the form can hold it, else it is asked for as a file.
async function open(name, text) {
  const told = await (await fetch("/open", { method: "POST", headers: { "content-type": "application/json" },
    body: JSON.stringify(text) })).json();
  if (!("words" in told) || !/^\s*(\[model|model\s*=)/m.test(text)) return false;
  if (told.serve && verb() === "predict") choose("simulate");
  if (told.words) { write(told.words); rearrange(); return true; }
  scenario = name;
  return false;
}

// A file goes where its name says what it is.
function place(name, text) {
  if (name.endsWith(".json")) byId("word-subject").value = name;
  else if (name === scenario) byId("word-subject").value = name;
  else if (name.endsWith(".toml") && !byId("word-on").value) byId("word-on").value = name;
}

function list_files() {
  byId("added").replaceChildren(...Object.keys(files).map((name) => {
    const drop = element("button", { type: "button", "aria-label": `Remove ${name}` }, "×");
    drop.addEventListener("click", () => { delete files[name]; if (scenario === name) scenario = null; list_files(); changed(); });
    return element("li", {}, `${name} `, drop);
  }));
}

function choose(name) {
  byId("questions").querySelector(`input[value=${name}]`).checked = true;
  arrange();
}

async function main() {
  forms = await (await fetch("/forms")).json();
  for (const one of forms.questions) {
    byId("questions").append(element("label", {}, element("input", { type: "radio", name: "question", value: one.name }),
      one.name));
  }
  const given = unpacked(location.search), asked = location.search.length > 1;
  choose(forms.questions.some((one) => one.name === given.verb) ? given.verb : "predict");
  ({ files } = given);
  scenario = Object.keys(files).find((name) => name === given.words.subject && name.endsWith(".toml")) ?? null;
  write(asked ? given.words : forms.example);
  rearrange();
  list_files();
  for (const one of given.beside) {
    const column = { question: { verb: one.verb, words: one.words, files: one.files }, numbers: [], kept: true };
    column.title = title(column.question);
    kept.push(column);
    ask(column.question, undefined, (told) => { if (told.event === "answer") { column.numbers = told.numbers; compare(); } });
  }
  listen();
  if (asked || live(question())) start();
}

function listen() {
  const form = byId("form");
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  form.addEventListener("input", (event) => {
    const one = event.target;
    if (one.name === "question") { arrange(); changed(); }
    else if (one.id === "find") rearrange();
    else if (one.id.startsWith("word-")) { if (one.id === "word-serve") rearrange(); changed(); }
  });
  byId("cancel").addEventListener("click", () => running?.abort());
  byId("keep").addEventListener("click", () => {
    if (!last) return;
    kept.push({ ...last, kept: true });
    last = null;
    remember(question(), kept.map((one) => one.question));
    compare();
    say(`Kept; ${kept.length} to compare with. Change a word to see the next one beside it.`);
  });
  byId("share").addEventListener("click", async () => {
    if (!remember(question(), kept.map((one) => one.question))) { say("The files are too long for a link."); return; }
    try { await navigator.clipboard.writeText(location.href); say("The link is copied."); }
    catch { say(`The link: ${location.href}`); }
  });
  byId("clear").addEventListener("click", () => {
    running?.abort();
    files = {}; scenario = null;
    write({}); list_files(); absolve(); rearrange();
    byId("word-subject").focus();
    say("");
  });
  byId("files").addEventListener("change", (event) => add(event.target.files));
  byId("use").addEventListener("click", () => add([new File([byId("pasted").value], "config.json")]));
  form.addEventListener("dragover", (event) => { event.preventDefault(); form.classList.add("over"); });
  form.addEventListener("dragleave", () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => { event.preventDefault(); form.classList.remove("over"); add(event.dataTransfer.files); });
}

main();
