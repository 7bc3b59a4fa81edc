// Follows views in Chromium: node browser.mjs CHROMIUM SERVICE. Each line of the standard input is
// {kind: "eventsource" | "fetch", base, path, types}; each line of the output answers one: {kind, shown: [[type, text]]}.
// The pages lie at the address of the stream, so that they are of its origin; tickets come from this process, as they
// would from the page's own backend.
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const [executablePath, service] = process.argv.slice(2);
const library = new URL("node_modules/@microsoft/fetch-event-source/lib/esm/", import.meta.url);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const pages = new Map();

async function ticket(path) {
  for (;;) {
    try {
      const headers = { "Content-Type": "application/json" };
      const answer = await fetch(`${service}/v1/tickets`, { method: "POST", headers, body: JSON.stringify({ path }) });
      if (answer.status === 201) return (await answer.json()).ticket;
    } catch { /* the service is starting again */ }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function pageFor(kind, base) {
  if (pages.has(kind)) return pages.get(kind);
  const page = await browser.newPage();
  await page.exposeFunction("ticket", ticket);
  await page.route("**/page.html", (route) => route.fulfill({ contentType: "text/html", body: "<title>reader</title>" }));
  await page.route("**/library/*", async (route) => {
    const name = new URL(route.request().url()).pathname.split("/").pop();
    const body = await readFile(new URL(name.endsWith(".js") ? name : `${name}.js`, library), "utf8");
    await route.fulfill({ contentType: "text/javascript", body });
  });
  await page.goto(`${base}/page.html`);
  pages.set(kind, page);
  return page;
}

// In the page. A ticket opens one connection: after an error there is no use in waiting for the browser's own try.
// `error` is the name of an event of ours as well: only the browser's own comes without data.
async function byEventSource({ path, types }) {
  const shown = [];
  let last = "0", ended = false;
  while (!ended) {
    const url = `${path}?until=idle&after=${last}&ticket=${await window.ticket(path)}`;
    await new Promise((resolve) => {
      const source = new EventSource(url);
      source.onerror = (event) => {
        if (event.data !== undefined) return;
        source.close();
        resolve();
      };
      for (const type of types) {
        source.addEventListener(type, (event) => {
          if (event.data === undefined) return;
          shown.push([event.type, event.data]);
          if (event.lastEventId) last = event.lastEventId;
          if (type !== "session.idle" && type !== "session.closed") return;
          ended = true;
          source.close();
          resolve();
        });
      }
    });
    if (!ended) await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return shown;
}

// In the page. A connection that is closed without a throw counts as the end. The library takes an id before the rest of
// its frame has come, so after a cut it would ask for what follows an event that it never showed: its own fetch asks for
// what follows the last one that was shown.
async function byFetch({ path }) {
  const { fetchEventSource } = await import("/library/index.js");
  const shown = [], control = new AbortController();
  let last = "0", ended = false;
  const end = () => { ended = true; control.abort(); };
  await fetchEventSource(`${path}?until=idle`, {
    signal: control.signal,
    openWhenHidden: true,
    fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, "last-event-id": last } }),
    onopen: async (answer) => {
      if (answer.status === 204) end();
      else if (answer.status !== 200) throw new Error(`HTTP ${answer.status}`);
    },
    onmessage: ({ id, event, data }) => {
      if (id) last = id;
      if (!data) return;
      shown.push([event, data]);
      if (event === "session.idle" || event === "session.closed") end();
    },
    onclose: () => { if (!ended) throw new Error("come again"); },
    onerror: () => 100,
  });
  return shown;
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  pageFor(order.kind, order.base)
    .then((page) => page.evaluate(order.kind === "eventsource" ? byEventSource : byFetch, order))
    .then((shown) => process.stdout.write(JSON.stringify({ kind: order.kind, shown }) + "\n"))
    .catch((error) => process.stdout.write(JSON.stringify({ kind: order.kind, error: String(error) }) + "\n"));
}
await browser.close();
