// One question as a stream of server-sent events over a POST; aborting it stops the work.

export async function ask(question, signal, heard) {
  const answer = await fetch("/ask", { method: "POST", signal, headers: { "content-type": "application/json" },
    body: JSON.stringify(question) });
  if (!answer.headers.get("content-type").startsWith("text/event-stream")) {
    heard(answer.headers.get("content-type").startsWith("application/json") ? await answer.json() :
      { event: "refused", error: `${answer.status}: ${await answer.text()}`, word: "" });
    return;
  }
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) heard(JSON.parse(part.slice(part.indexOf("data: ") + 6)));
  }
}
