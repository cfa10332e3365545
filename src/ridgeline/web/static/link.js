// A question as the query of an address, with the questions beside it.

const LONGEST = 12000; // characters of an address that browsers and messengers keep whole

export function packed(question, beside = []) {
  const query = new URLSearchParams({ ask: question.verb });
  for (const [name, value] of Object.entries(question.words)) query.set(name, value);
  for (const [name, text] of Object.entries(question.files)) query.set(`file:${name}`, text);
  for (const one of beside) query.append("beside", packed(one));
  return query.toString();
}

export function unpacked(text) {
  const query = new URLSearchParams(text), words = {}, files = {};
  for (const [name, value] of query) {
    if (name.startsWith("file:")) files[name.slice(5)] = value;
    else if (name !== "ask" && name !== "beside") words[name] = value;
  }
  return { verb: query.get("ask") ?? "predict", words, files, beside: query.getAll("beside").map(unpacked) };
}

// Puts a question into the address; false where it is too long for one.
export function remember(question, beside) {
  const query = packed(question, beside), fits = query.length <= LONGEST;
  history.replaceState(null, "", fits ? `?${query}` : location.pathname);
  return fits;
}
