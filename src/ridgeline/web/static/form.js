// The fields of the page, made of the table of questions, and what a person wrote in them.

const byId = (id) => document.getElementById(id);

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const label = (word) => ({ subject: "Model or scenario", on: "Cluster", serve: "Serving" })[word.name] ??
  word.name.replaceAll("_", " ");

function input(word, names) {
  const id = `word-${word.name}`, about = `${id}-help ${id}-wrong`;
  const same = { id, name: word.name, "aria-describedby": about };
  if (word.kind === "switch" && word.default !== null) {
    const made = element("input", { ...same, type: "checkbox", checked: word.default });
    made.dataset.default = word.default;
    return made;
  }
  if (word.kind === "choice" || word.kind === "switch") {
    const choices = word.kind === "switch" ? ["true", "false"] : word.choices;
    const shown = { true: "yes", false: "no" };
    const made = element("select", same, element("option", { value: "" }, word.default ? `default: ${word.default}` : ""));
    for (const one of choices) made.append(element("option", { value: one }, word.kind === "switch" ? shown[one] : one));
    return made;
  }
  const list = names[word.name] && `${id}-names`;
  const hint = word.default === null || word.default === "" ? null : `default: ${word.default}`;
  return element("input", { ...same, type: "text", list, placeholder: hint, autocomplete: "off", spellcheck: "false",
    autocapitalize: "off", inputmode: word.kind === "number" ? "decimal" : null });
}

function field(word, names) {
  const made = input(word, names), id = made.id;
  const box = element("div", { class: made.type === "checkbox" ? "word switch" : "word" });
  const title = element("label", { for: id }, label(word));
  box.append(...(made.type === "checkbox" ? [made, title] : [title, made]));
  if (names[word.name]) {
    box.append(element("datalist", { id: `${id}-names` }, ...names[word.name].map((one) => element("option", { value: one }))));
  }
  box.append(element("small", { id: `${id}-help` }, word.help), element("div", { id: `${id}-wrong`, class: "wrong" }));
  box.dataset.words = `${word.name} ${word.name.replaceAll("_", " ")} ${word.help} ${word.flag}`.toLowerCase();
  return box;
}

// Shows the words of a question; what was written in those it shares with the last one stays.
export function show(question, names) {
  const kept = written();
  byId("about").textContent = question.help;
  const first = ["subject", "on", "serve"];
  const own = question.own.filter((one) => first.includes(one.name));
  const more = question.own.filter((one) => !first.includes(one.name));
  byId("own").replaceChildren(...own.map((one) => field(one, names)));
  const groups = [...question.groups];
  if (more.length) groups.push({ heading: "Options of the question", words: more });
  byId("groups").replaceChildren(...groups.map((group) => element("details", { "data-heading": group.heading },
    element("summary", {}, group.heading), element("div", {}, ...group.words.map((one) => field(one, names))))));
  write(kept);
}

// Only groups of the workload that is asked for, and words that hold what is searched for.
export function sift(serving) {
  const sought = byId("find").value.trim().toLowerCase().replace(/^--/, "");
  for (const group of byId("groups").children) {
    const heading = group.dataset.heading;
    const idle = serving === null ? false : heading.startsWith(serving ? "Training:" : "Serving:");
    let found = 0;
    for (const box of group.querySelectorAll(".word")) {
      box.hidden = sought !== "" && !box.dataset.words.includes(sought);
      found += box.hidden ? 0 : 1;
    }
    group.hidden = idle || found === 0;
    if (sought) group.open = true;
  }
}

export function written() {
  const words = {};
  for (const one of byId("form").querySelectorAll("[id^='word-']")) {
    if (!one.name) continue;
    if (one.type === "checkbox") {
      if (one.checked !== (one.dataset.default === "true")) words[one.name] = one.checked;
    } else if (one.value.trim() !== "") words[one.name] = one.value.trim();
  }
  return words;
}

export function write(words) {
  for (const one of byId("form").querySelectorAll("[id^='word-']")) {
    if (!one.name) continue;
    const value = words[one.name];
    if (one.type === "checkbox") one.checked = value === undefined ? one.dataset.default === "true" : String(value) === "true";
    else one.value = value ?? "";
    const group = one.closest("details");
    if (value !== undefined && group && !matchMedia("(max-width: 50rem)").matches) group.open = true;
  }
}

// A refusal at the field it names, with names to choose from; false where the page has no such field.
export function blame(told, choose) {
  const one = told.word ? byId(`word-${told.word}`) : null;
  if (!one) return false;
  one.setAttribute("aria-invalid", "true");
  const place = byId(`${one.id}-wrong`), group = one.closest("details");
  if (group) { group.open = true; group.hidden = false; }
  one.closest(".word").hidden = false;
  place.replaceChildren(told.error);
  for (const name of told.nearest ?? []) {
    const button = element("button", { type: "button" }, name);
    button.addEventListener("click", () => {
      const wrong = String(told.value ?? "");
      one.value = wrong && one.value.includes(wrong) ? one.value.replace(wrong, () => name) : name;
      one.focus();
      choose();
    });
    place.append(place.querySelector("button") ? "" : element("br"), button);
  }
  return true;
}

export function absolve() {
  for (const one of document.querySelectorAll("[aria-invalid]")) one.removeAttribute("aria-invalid");
  for (const one of document.querySelectorAll(".wrong")) one.replaceChildren();
}
