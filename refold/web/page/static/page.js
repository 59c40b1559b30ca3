// Makes the page live. Without it, everything works by links and forms; with it, one event stream says what changed,
// and htmx fetches the parts that show it. Nothing here puts text into the page but as text.
"use strict";
(() => {
  const SOON_MS = 120, AGAIN_MS = 3000, LOOK_MS = 10000, RARELY_MS = 60000, SILENT_MS = 60000;
  let stream = null, timer = 0, broken = false, over = false, again = AGAIN_MS, heardAt = 0;

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

  document.addEventListener("input", (event) => {
    if (!event.target.matches("[data-submits]")) return;
    const shown = event.target.form.querySelector("output");
    if (shown) shown.textContent = `${event.target.value} of ${event.target.max}`;
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  // No part is replaced while the pointer is pressed, or is on something to press that could move with it. Nor is one that
  // has the focus, an open form, or what somebody typed: its fields are compared with what they held at first, since a
  // browser that restores them tells nobody. A note says that it has changed; it is replaced afterwards.
  const PRESSABLE = "main :is(button, .button, summary, label, input, select, textarea):hover";
  let pressed = false, hovers = false;  // a touch does not, and leaves :hover where it was
  function typed(field) {
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field.type !== "select-one") return field.value !== field.defaultValue;
    return field.selectedIndex !== Math.max(0, [...field.options].findIndex((one) => one.defaultSelected));
  }
  function moves(part) {
    const on = hovers && document.querySelector(PRESSABLE);
    if (!on) return false;
    const top = part.getClientRects()[0]?.top ?? part.parentElement.getBoundingClientRect().bottom;  // one is not seen
    return top < on.getBoundingClientRect().bottom;
  }
  function busy(part) {
    return pressed || moves(part) || part.contains(document.activeElement) || part.querySelector("details[open] form")
      || [...part.querySelectorAll("input, select, textarea")].some(typed);
  }

  // The parts that have changed since they were fetched.
  const changed = new Set();
  let refused = false;
  function announce() {
    const note = document.querySelector(".stale");
    if (note) note.hidden = !refused && !changed.size;
  }

  // The answer to a part's request replaces the part, and htmx drops what it has queued there: what changes while a part
  // is being fetched is fetched once more afterwards, also where the part was replaced before it could be asked.
  const fetching = new WeakSet();
  let missed = false;
  document.addEventListener("htmx:before:request", (event) => fetching.add(event.detail.ctx.sourceElement));
  document.addEventListener("htmx:finally:request", (event) => {
    fetching.delete(event.detail.ctx.sourceElement);
    if (missed) { missed = false; soon(); }
  });

  function refresh() {
    timer = 0;
    if (pressed) return;  // no note comes under the pointer either
    let replaced = false;
    for (const part of changed) {
      if (part.isConnected && busy(part)) continue;
      changed.delete(part);
      if (!part.isConnected) replaced = true;
      else if (fetching.has(part)) missed = true;
      else htmx.trigger(part, "changed");
    }
    announce();
    if (replaced) soon();
  }
  function later() { timer = timer || setTimeout(refresh, SOON_MS); }
  function soon() {
    for (const part of document.querySelectorAll("[data-on-change]")) changed.add(part);
    later();
  }
  function moved(event) {
    if (event instanceof PointerEvent) {
      pressed = event.buttons % 2 === 1;
      hovers = event.pointerType !== "touch" && event.type !== "pointerleave";
    }
    if (changed.size) later();
  }
  for (const name of ["pointerdown", "pointerup", "pointercancel", "pointerover", "focusout"]) {
    document.addEventListener(name, moved);
  }
  document.documentElement.addEventListener("pointerleave", moved);  // out of the window: none of those events comes

  let open = [];
  document.addEventListener("htmx:before:swap", (event) => {
    const part = event.target;
    if (!part.matches("[data-on-change]")) return;
    if (busy(part)) {  // somebody may have begun while the part was fetched
      event.preventDefault();
      changed.add(part);
      later();
    } else open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
  });
  document.addEventListener("htmx:after:swap", () => {
    for (const one of open.map((id) => document.getElementById(id))) if (one) one.open = true;
    open = [];
    times();
    forget();
  });

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
    heardAt = Date.now();
    for (const name of ["open", "alive", "changed", "text", "progress"]) {
      stream.addEventListener(name, () => { heardAt = Date.now(); });
    }
    stream.addEventListener("open", () => { again = AGAIN_MS; if (broken) { lost(false); soon(); } });
    stream.addEventListener("changed", soon);
    stream.addEventListener("text", (event) => write(JSON.parse(event.data)));
    stream.addEventListener("progress", (event) => report(JSON.parse(event.data)));
    stream.addEventListener("ended", () => { over = true; delete document.body.dataset.live; close(); soon(); });
    stream.addEventListener("error", () => {
      lost(true);
      if (stream && stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(connect, again);
        again = Math.min(again * 2, RARELY_MS);
      }
    });
  }
  function close() { if (stream) { stream.close(); stream = null; } }
  function lost(is) {
    broken = is;
    const note = document.querySelector(".lost");
    if (note) note.hidden = !is;
  }
  // A connection that broke while the machine slept, or that a router forgot, ends for nobody: it only says nothing. The
  // server says something every 20 s.
  setInterval(() => {
    if (!stream || Date.now() - heardAt < SILENT_MS) return;
    lost(true);
    close();
    connect();
  }, LOOK_MS);

  // A browser opens few connections to one server, so a page that nobody looks at has none.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else if (document.body.dataset.live) { connect(); soon(); }
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });

  // A part that is refused, as the task was deleted meanwhile or may be seen no more: the whole page says why.
  document.addEventListener("htmx:response:error", () => { refused = true; announce(); });
  // One that is not answered, as its connection is dead, is fetched once more; if all are, once there is a stream again.
  document.addEventListener("htmx:error", () => { if (!broken) setTimeout(soon, AGAIN_MS); });

  document.addEventListener("DOMContentLoaded", () => { times(); connect(); });

  // One click is one decision: a form that is being sent is not sent again.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
    setTimeout(() => delete event.target.dataset.sent, 5000);
  });
})();
