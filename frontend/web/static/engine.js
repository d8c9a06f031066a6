// The engine as it works: figures, its cores' block maps, graphs and requests, drawn from one event a second.

import { withKey } from "./access.js";
import { ApiError, events } from "./api.js";
import { CoreCard } from "./block_map.js";
import { byId, make } from "./dom.js";
import { Graphs } from "./graphs.js";
import { RequestsTable } from "./requests.js";

const TILES = [
  ["running", "Running"],
  ["waiting", "Waiting"],
  ["speed", "Output tokens/s"],
  ["kv", "KV pool in use"],
  ["hits", "Prefix cache hits"],
  ["restarts", "Restarts"],
];
const RETRY_MS = 2000;
const SILENCE_MS = 8000; // a picture may take a few seconds, if a core is silent

export class EngineView {
  constructor() {
    this.graphs = new Graphs(byId("graphs"));
    this.requests = new RequestsTable(byId("requests"));
    this.cores = [];
    this.tiles = Object.fromEntries(TILES.map(([name, title]) => [name, tile(title)]));
    this.controller = null;
    this.silence = null; // a timer
    this.previous = null;
    document.addEventListener("appearance", () => this.cores.forEach((core) => core.draw()));
    addEventListener("resize", () => this.cores.forEach((core) => core.draw()));
    document.addEventListener("visibilitychange", () => {
      if (byId("engine").hidden) return;
      if (document.hidden) this.stop();
      else this.start();
    });
  }

  start() {
    if (this.controller) return;
    this.controller = new AbortController();
    this.follow(this.controller.signal);
  }

  stop() {
    clearTimeout(this.silence);
    this.controller?.abort();
    this.controller = null;
  }

  // A server that stands still, or the way to which is lost, ends no stream: it is asked anew.
  expectAnother() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.stop();
      this.start();
      this.say("lost", "The server is silent.");
    }, SILENCE_MS);
  }

  async follow(signal) {
    while (!signal.aborted) {
      this.previous = null; // another process may answer, whose counters are others
      try {
        const done = await withKey(async () => {
          for await (const picture of events("v1/engine/events", { signal })) {
            this.show(picture);
            this.expectAnother();
          }
          return true;
        });
        if (done === null) return this.say("lost", "The engine is shown to those who have a key.");
        this.say("lost", "The server has stopped.");
      } catch (error) {
        if (signal.aborted) return undefined;
        this.say("lost", error instanceof ApiError ? error.message : String(error));
      }
      clearTimeout(this.silence);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
    return undefined;
  }

  say(state, text) {
    const status = byId("engine-status");
    if (status.textContent === text) return;
    status.dataset.state = state;
    status.textContent = text;
  }

  sayState({ device, model, is_serving: isServing }, there) {
    const is = (state) => there.some(({ stats }) => stats[state]);
    if (!isServing) this.say("lost", "The engine is being started again; requests wait.");
    else if (is("sleep_level")) this.say("waiting", "The engine sleeps; requests wait until it is woken.");
    else if (is("is_paused")) this.say("waiting", "The engine is paused; requests wait until it goes on.");
    else this.say("live", `${model.split("/").at(-1)} on ${device}`);
  }

  show(picture) {
    const there = picture.cores.filter(Boolean);
    this.sayState(picture, there);
    const figures = this.figuresOf(picture, there);
    this.showTiles(figures, picture);
    this.graphs.add(picture.time_s, figures);
    this.showCores(picture);
    const count = there.reduce((sum, core) => sum + core.num_children, 0);
    this.requests.show(picture.cores);
    byId("requests-count").textContent = count ? `${count.toLocaleString("en")} in all` : "";
    this.previous = picture;
  }

  figuresOf(picture, there) {
    const sum = (name) => there.reduce((total, core) => total + core.stats[name], 0);
    const { previous } = this;
    const passed = previous ? picture.time_s - previous.time_s : 0;
    const gained = (name) => (previous ? picture.totals[name] - previous.totals[name] : 0);
    const perSecond = (name) => (passed > 0 ? gained(name) / passed : 0);
    const { first_token_s: first, inter_token_s: between } = picture.latencies;
    return {
      running: sum("num_running"),
      waiting: sum("num_waiting"),
      output: perSecond("num_generation_tokens"),
      prompt: perSecond("num_prompt_tokens"),
      firstMs: first === null ? null : first * 1000,
      betweenMs: between === null ? null : between * 1000,
      kv: share(sum("num_used_blocks"), sum("num_blocks")),
      hits: gained("prefix_cache_queries") ? share(gained("prefix_cache_hits"), gained("prefix_cache_queries")) : null,
      usedBlocks: sum("num_used_blocks"),
      numBlocks: sum("num_blocks"),
    };
  }

  showTiles(figures, { totals, num_core_restarts: coreRestarts, max_num_seqs: rows, cores }) {
    const set = (name, value, note) => this.tiles[name](value, note);
    const whole = share(totals.prefix_cache_hits, totals.prefix_cache_queries);
    set("running", number(figures.running), `of ${number(rows * cores.length)} at once`);
    set("waiting", number(figures.waiting), totals.num_preemptions ? `${number(totals.num_preemptions)} preemptions so far` : "");
    set("speed", number(figures.output), `prompts ${number(figures.prompt)}/s`);
    set("kv", percent(figures.kv), `${number(figures.usedBlocks)} of ${number(figures.numBlocks)}`);
    set("hits", totals.prefix_cache_queries ? percent(whole) : "-", `${number(totals.prefix_cache_hits)} tokens found`);
    const restarts = coreRestarts + totals.num_executor_restarts;
    set("restarts", number(restarts), restarts ? `cores ${coreRestarts}, executors ${totals.num_executor_restarts}` : "");
  }

  showCores({ cores, block_size: blockSize }) {
    while (this.cores.length < cores.length) {
      const card = new CoreCard(cores.length > 1 ? this.cores.length : null);
      this.cores.push(card);
      byId("cores").append(card.element);
    }
    cores.forEach((core, rank) => this.cores[rank].show(core, blockSize));
  }
}

function tile(title) {
  const value = make("dd");
  const note = make("dd", { class: "note" });
  byId("tiles").append(make("div", { class: "tile" }, make("dt", {}, title), value, note));
  return (text, said) => {
    value.textContent = text;
    note.textContent = said;
  };
}

const share = (part, whole) => (whole ? part / whole : 0);
const percent = (value) => `${(value * 100).toFixed(value && value < 0.1 ? 1 : 0)}%`;
const number = (value) => (value < 10 && value % 1 ? value.toFixed(1) : Math.round(value).toLocaleString("en"));
