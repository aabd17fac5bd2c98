"use strict";
// What moves on the pages of the console. Every page works without it, as a snapshot.

// Moments in the reader's own time zone.
function localTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    const pad = (number, width) => String(number).padStart(width || 2, "0");
    const day = `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}`;
    const time = `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}`;
    const isToday = new Date().toDateString() === moment.toDateString();
    const whole = `${day} ${time}.${pad(moment.getMilliseconds(), 3)}`;
    const short = isToday ? time : `${day} ${time}`;
    element.textContent = element.closest("[data-whole]") ? whole : short;
    element.title = whole;
  }
}

// Makes `old` equal to `fresh` in place, so that focus, selection and transitions stay.
function morph(old, fresh) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && !(old.tagName === "DETAILS" && name === "open")) {
      old.removeAttribute(name);
    }
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const wanted = [...fresh.childNodes];
  wanted.forEach((child, index) => {
    const present = old.childNodes[index];
    if (!present) old.append(child);
    else if (isAlike(present, child)) morph(present, child);
    else present.replaceWith(child);
  });
  while (old.childNodes.length > wanted.length) old.lastChild.remove();
}

function isAlike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName &&
    (one.nodeType !== Node.ELEMENT_NODE || one.id === other.id);
}

// Parts of a page that the server renders again.
function live(element) {
  const mark = document.querySelector("[data-live-mark]");
  const show = (isOn) => {
    if (!mark) return;
    mark.textContent = isOn ? mark.dataset.on : mark.dataset.off;
    mark.classList.toggle("on", isOn);
  };
  whileVisible(() => {
    const source = new EventSource(element.dataset.live);
    source.addEventListener("part", (event) => {
      const page = new DOMParser().parseFromString(event.data, "text/html");
      localTimes(page);
      morphChildren(element, page.body);
      show(true);
    });
    source.addEventListener("error", () => show(false));
    return source;
  });
}

// A browser has six connections to a server: a page that nobody sees gives its own back.
function whileVisible(open) {
  let source = null;
  const follow = () => {
    const isOver = !source || source.readyState === EventSource.CLOSED;
    if (document.visibilityState === "visible" && isOver) source = open();
    if (document.visibilityState !== "visible" && source) {
      source.close();
      source = null;
    }
  };
  follow();
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => source && source.close());
}

// A list of messages that grows at its top.
function tail(element) {
  const limit = 200;
  const source = new EventSource(element.dataset.tail);
  const empty = document.querySelector("[data-tail-empty]");
  source.addEventListener("row", (event) => {
    const table = new DOMParser().parseFromString(`<table><tbody>${event.data}</tbody></table>`, "text/html");
    localTimes(table);
    for (const row of table.querySelectorAll("tbody > tr")) element.prepend(row);
    while (element.children.length > limit) element.lastElementChild.remove();
    if (empty) empty.hidden = element.children.length > 0;
  });
  const mark = document.querySelector("[data-live-mark]");
  source.addEventListener("open", () => { mark.textContent = mark.dataset.on; mark.classList.add("on"); });
  source.addEventListener("error", () => { mark.textContent = mark.dataset.off; mark.classList.remove("on"); });
  addEventListener("pagehide", () => source.close());
}

// Times that are typed in the reader's own time zone; the server is told them in UTC.
function moments(form) {
  const fields = form.querySelectorAll("input[data-moment]");
  for (const field of fields) {
    const moment = new Date(field.dataset.moment || NaN);
    if (!isNaN(moment)) {
      field.value = new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
    }
  }
  for (const text of form.querySelectorAll("[data-zone]")) {
    text.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
  }
  form.addEventListener("formdata", (event) => {
    for (const field of fields) {
      if (field.value) event.formData.set(field.name, new Date(field.value).toISOString());
    }
  });
}

// A box that checks all the others of its table.
function checkAll(box) {
  box.addEventListener("change", () => {
    for (const other of document.querySelectorAll(`input[name="${box.dataset.all}"]`)) {
      other.checked = box.checked;
    }
  });
}

localTimes(document);
document.querySelectorAll("[data-live]").forEach(live);
document.querySelectorAll("[data-tail]").forEach(tail);
document.querySelectorAll("[data-all]").forEach(checkAll);
document.querySelectorAll("form:has([data-moment])").forEach(moments);
document.addEventListener("click", (event) => {
  for (const box of document.querySelectorAll("details.tools[open], details.menu[open]")) {
    if (!box.contains(event.target)) box.open = false;
  }
});
