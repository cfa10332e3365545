// Kept answers beside the one on the page: the words that differ, then the numbers.

import { element } from "./form.js";

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""], [1e-3, "m"], [1e-6, "µ"]];

export function shown(value, unit) {
  if (value === 0) return `0 ${unit}`.trim();
  const [size, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
  return unit && unit !== "1" ? `${+(value / size).toPrecision(4)} ${prefix}${unit}` :
    Math.abs(value) >= 1e5 ? value.toExponential(3) : String(+value.toPrecision(4));
}

function cell(number, first) {
  if (!number) return element("td", {}, "");
  const made = element("td", {}, shown(number.value, number.unit));
  if (first && first !== number && first.value) {
    const change = number.value / first.value - 1;
    if (change) made.append(element("br"), element("small", {}, `${change > 0 ? "+" : ""}${(100 * change).toFixed(1)} %`));
  }
  return made;
}

// Columns are { question, numbers, title }; the first one is what others are compared with.
export function table(columns, drop) {
  const head = element("tr", {}, element("th", { scope: "col" }, "scenario"));
  columns.forEach((one, index) => {
    const title = element("th", { scope: "col" }, one.title);
    if (one.kept) {
      const button = element("button", { type: "button", "aria-label": `Drop ${one.title}` }, "×");
      button.addEventListener("click", () => drop(index));
      title.append(" ", button);
    }
    head.append(title);
  });
  const rows = [];
  for (const name of new Set(columns.flatMap((one) => ["question", ...Object.keys(one.question.words)]))) {
    const said = columns.map((one) => String(name === "question" ? one.question.verb : one.question.words[name] ?? ""));
    if (new Set(said).size > 1) {
      rows.push(element("tr", { class: "differs" }, element("th", { scope: "row" }, name.replaceAll("_", " ")),
        ...said.map((text) => element("td", {}, text))));
    }
  }
  for (const name of new Set(columns.flatMap((one) => one.numbers.map((number) => number.name)))) {
    const numbers = columns.map((one) => one.numbers.find((number) => number.name === name));
    rows.push(element("tr", {}, element("th", { scope: "row" }, name.replaceAll("_", " ")),
      ...numbers.map((number) => cell(number, numbers[0]))));
  }
  return [element("thead", {}, head), element("tbody", {}, ...rows)];
}
