// Follows a view with eventsource-parser over fetch: node parser.mjs ADDRESS PATH. One JSON line for each event.
import { createParser } from "eventsource-parser";

const [base, path] = process.argv.slice(2);
const pause = () => new Promise((resolve) => setTimeout(resolve, 100));
let last = "0", ended = false;

async function connect() {
  const answer = await fetch(`${base}${path}?until=idle`, { headers: { "Last-Event-ID": last } });
  if (answer.status === 204) { ended = true; return; }
  if (answer.status !== 200) throw new Error(`HTTP ${answer.status}`);
  const parser = createParser({
    onEvent: ({ id, event, data }) => {
      if (id !== undefined) last = id;
      process.stdout.write(JSON.stringify({ type: event, text: data }) + "\n");
      if (event === "session.idle" || event === "session.closed") ended = true;
    },
  });
  const decoder = new TextDecoder();
  for await (const piece of answer.body) parser.feed(decoder.decode(piece, { stream: true }));
}

while (!ended) {
  try { await connect(); } catch { /* cut, or nobody there: come again */ }
  if (!ended) await pause();
}
