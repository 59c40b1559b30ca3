// Makes the page live. Without it, everything works by links and forms; with it, one event stream says what changed,
// and htmx fetches the parts that show it. Nothing here puts text into the page but as text.
"use strict";
(() => {
  const SOON_MS = 120, AGAIN_MS = 3000, RARELY_MS = 60000;
  let stream = null, timer = 0, broken = false, over = false, again = AGAIN_MS;

  // Times: UTC comes from the server; a reader sees their own zone, and how long ago.
  // A time of today has no date, so all are written again on another day.
  let today = "";
  function times() {
    const now = new Date().toDateString(), which = now === today ? "time[datetime]:not([title])" : "time[datetime]";
    const whole = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
    const clock = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
    for (const one of document.querySelectorAll(which)) {
      const at = new Date(one.dateTime);
      if (isNaN(at)) continue;
      one.title = one.title || one.textContent;
      one.textContent = at.toDateString() === now ? clock.format(at) : whole.format(at);
    }
    today = now;
  }
  setInterval(times, RARELY_MS);

  // A part in which somebody is typing is not replaced: a note says that it has changed.
  const typed = new WeakSet();
  document.addEventListener("input", (event) => {
    const part = event.target.closest("[data-on-change]");
    if (part) typed.add(part);
    if (event.target.matches("[data-submits]")) {
      const shown = event.target.form.querySelector("output");
      if (shown) shown.textContent = `${event.target.value} of ${event.target.max}`;
    }
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  function busy(part) {
    return typed.has(part) || part.querySelector("details[open] form, form :focus:is(input, textarea, select)");
  }
  function announce() {
    const note = document.querySelector(".stale");
    if (note) note.hidden = false;
  }

  // The answer to a part's request replaces the part, and htmx drops what it has queued there: what changes while a part
  // is being fetched is fetched once more afterwards.
  const fetching = new WeakSet();
  let missed = false;
  document.addEventListener("htmx:before:request", (event) => fetching.add(event.detail.ctx.sourceElement));
  document.addEventListener("htmx:finally:request", (event) => {
    fetching.delete(event.detail.ctx.sourceElement);
    if (missed) { missed = false; soon(); }
  });

  function refresh() {
    timer = 0;
    for (const part of document.querySelectorAll("[data-on-change]")) {
      if (busy(part)) announce();
      else if (fetching.has(part)) missed = true;
      else htmx.trigger(part, "changed");
    }
  }
  // Somebody may have begun to type while the part was fetched.
  document.addEventListener("htmx:before:swap", (event) => {
    if (!event.target.matches("[data-on-change]") || !busy(event.target)) return;
    event.preventDefault();
    announce();
  });
  function soon() { timer = timer || setTimeout(refresh, SOON_MS); }

  // Text that a model is writing, until the journal has it.
  const heard = new Map();
  function write(one) {
    const place = document.getElementById("writing");
    if (!place) return;
    const key = JSON.stringify([one.invocation_id, one.attempt, one.call ?? null]);
    let box = heard.get(key);
    if (!box) {
      box = document.createElement("p");
      box.className = "writing";
      box.dir = "auto";
      box.dataset.id = one.invocation_id;
      box.length_ = 0;
      if (one.tool) box.append(`${one.tool}: `);
      place.append(box);
      heard.set(key, box);
    }
    if (one.offset > box.length_) box.append("…");
    const letters = Array.from(one.text), known = Math.max(0, box.length_ - one.offset);
    box.append(letters.slice(known).join(""));
    box.length_ = Math.max(box.length_, one.offset + letters.length);
  }
  // What a tool reports: the newest report in place of the one before.
  function report(one) {
    const place = document.getElementById("writing"), key = `report ${one.invocation_id}`;
    if (!place || document.querySelector(`.entry[data-done="${CSS.escape(one.invocation_id)}"]`)) return;
    const box = heard.get(key) || document.createElement("p");
    box.className = "writing";
    box.dir = "auto";
    box.dataset.id = one.invocation_id;
    box.textContent = `${one.tool}: ${one.said}`;
    if (!heard.has(key)) { heard.set(key, box); place.append(box); }
  }
  function forget() {
    for (const [key, box] of heard) {
      if (!over && !document.querySelector(`.entry[data-done="${CSS.escape(box.dataset.id)}"]`)) continue;
      box.remove();
      heard.delete(key);
    }
  }

  function connect() {
    const address = document.body.dataset.live;
    if (!address || stream || document.hidden) return;
    stream = new EventSource(address);
    stream.addEventListener("open", () => { again = AGAIN_MS; if (broken) { broken = false; soon(); } });
    stream.addEventListener("changed", soon);
    stream.addEventListener("text", (event) => write(JSON.parse(event.data)));
    stream.addEventListener("progress", (event) => report(JSON.parse(event.data)));
    stream.addEventListener("ended", () => { over = true; delete document.body.dataset.live; close(); soon(); });
    stream.addEventListener("error", () => {
      broken = true;
      if (stream && stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(connect, again);
        again = Math.min(again * 2, RARELY_MS);
      }
    });
  }
  function close() { if (stream) { stream.close(); stream = null; } }

  // A browser opens few connections to one server, so a page that nobody looks at has none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (document.body.dataset.live) { connect(); soon(); }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // A part that is refused, as the task was deleted meanwhile or may be seen no more: the whole page says why.
  document.addEventListener("htmx:response:error", announce);

  document.addEventListener("htmx:after:swap", () => { times(); forget(); });
  document.addEventListener("DOMContentLoaded", () => { times(); connect(); });

  // One click is one decision: a form that is being sent is not sent again.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
    setTimeout(() => delete event.target.dataset.sent, 5000);
  });
})();
