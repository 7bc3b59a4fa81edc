// Carries out an example for browsers: the smallest EventSource there can be, and addresses that begin with the origin.
// node browser.mjs ORIGIN PATH < example   prints a line of JSON for each event that is shown, with the text as it is
// then, for each ticket that was not to be had, and for the status at the end.
const [origin, path] = process.argv.slice(2);
const fetched = globalThis.fetch;
globalThis.fetch = (url, init) => fetched(new URL(url, origin), init);

globalThis.EventSource = class {
  listeners = {};
  aborted = new AbortController();

  constructor(url) {
    this.read(url).catch(() => undefined).then(() => this.aborted.signal.aborted || this.onerror({}));
  }

  addEventListener(type, listener) {
    (this.listeners[type] ??= []).push(listener);
  }

  close() {
    this.aborted.abort();
  }

  async read(url) {
    const answer = await fetch(url, {headers: {accept: "text/event-stream"}, signal: this.aborted.signal});
    if (answer.status !== 200) return;
    let text = "", lastEventId = "";
    for await (const piece of answer.body.pipeThrough(new TextDecoderStream())) {
      const frames = (text += piece).split("\n\n");
      text = frames.pop();
      for (const frame of frames) {
        const fields = Object.fromEntries(frame.split("\n").map((line) => line.split(/: (.*)/s)));
        lastEventId = fields.id ?? lastEventId;
        if (fields.data === undefined) continue;
        for (const listener of this.listeners[fields.event] ?? []) listener({data: fields.data, lastEventId});
      }
    }
  }
};

globalThis.ticketFor = async (path) => {
  try {
    const body = JSON.stringify({path});
    const answer = await fetch("/v1/tickets", {method: "POST", body, headers: {"content-type": "application/json"}});
    if (!answer.ok) throw Object.assign(new Error("no ticket"), {status: answer.status});
    return (await answer.json()).ticket;
  } catch (error) {
    say({ticket: null, why: String(error)});
    throw error;
  }
};

const say = (value) => console.log(JSON.stringify(value));
const soon = (resolve) => setTimeout(resolve, 10);  // the example waits for as long as people do
let example = "";
for await (const piece of process.stdin.setEncoding("utf8")) example += piece;
const {follow, textOf} = new Function("setTimeout", `${example}; return {follow, textOf}`)(soon);
const status = await follow(path, (type, event) => {
  say({type, id: event.id ?? null, text: textOf(type, event) ?? null});
});
say({status});
