// Sends the requests that /docs describes, to the gateway that served the page and to no other server.
"use strict";

/** Responses are shown up to this length; use curl for longer ones. */
const SHOWN_CHARACTERS_MAX = 100_000;

document.documentElement.classList.add("script");

/** Whether the broker has users: then requests need a login. */
let hasUsers = false;
/** Proves that a request comes from this page, if the browser has a session. */
let csrfToken = "";

/** Returns the form's request: method, URL, headers and body. Empty fields are omitted. */
function requestOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = [];
  for (const field of form.querySelectorAll("[data-in]")) {
    const { name, value } = field;
    if (field.dataset.in === "path") path = path.replace(`{${name}}`, encodeURIComponent(value));
    else if (value !== "" && field.dataset.in === "query") query.append(name, value);
    else if (value !== "") headers.push([name, value]);
  }
  const text = form.querySelector("textarea.body");
  const body = text && text.value !== "" ? text.value : undefined;
  if (body !== undefined) headers.push(["Content-Type", form.querySelector("select.media").selectedOptions[0].dataset.media]);
  const asked = query.toString();
  return { method: form.dataset.method, url: location.origin + path + (asked ? `?${asked}` : ""), headers, body };
}

function quoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function curlOf({ method, url, headers, body }) {
  const parts = [`curl${method === "GET" ? "" : ` -X ${method}`} ${quoted(url)}`];
  for (const [name, value] of headers) parts.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (hasUsers) parts.push('-H "Authorization: Bearer $ONCEMQ_TOKEN"');
  if (body !== undefined) parts.push(`--data-binary ${quoted(body)}`);
  return parts.join(" \\\n  ");
}

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Indents JSON. Numbers stay as they are written: JavaScript would round large ones. */
function indented(json) {
  let depth = 0;
  const newLine = () => `\n${"  ".repeat(depth)}`;
  return json.replace(/"(?:[^"\\]|\\.)*"|\{\s*\}|\[\s*\]|[{}[\],:]|\s+/g, (token) => {
    if (token === "{" || token === "[") {
      depth += 1;
      return token + newLine();
    }
    if (token === "}" || token === "]") {
      depth -= 1;
      return newLine() + token;
    }
    if (token === ",") return token + newLine();
    if (token === ":") return ": ";
    return token.startsWith('"') ? token : token.replace(/\s+/g, "");
  });
}

/** Shows the response's text as it arrives; JSON is indented when it is complete. */
async function showBody(response, shown) {
  if (!response.body) return;
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    text += decoder.decode(value, { stream: true });
    shown.textContent = text;
    if (text.length > SHOWN_CHARACTERS_MAX) {
      await reader.cancel();
      shown.textContent += "\n…";
      return;
    }
  }
  if (/json\b/.test(response.headers.get("content-type") ?? "") && text !== "") {
    try {
      JSON.parse(text);
      shown.textContent = indented(text);
    } catch {
      // It is not one JSON value: show it as it is.
    }
  }
}

async function send(form) {
  const { method, url, headers, body } = requestOf(form);
  if (csrfToken !== "") headers.push(["OnceMQ-CSRF", csrfToken]);
  const output = form.querySelector("output");
  const stop = form.querySelector(".stop");
  const abort = new AbortController();
  stop.hidden = false;
  stop.onclick = () => abort.abort();
  output.replaceChildren(element("p", "", "Waiting for the response …"));
  const began = performance.now();
  try {
    const response = await fetch(url, { method, headers, body, signal: abort.signal, cache: "no-store" });
    const status = element("p", response.ok ? "good" : "bad", `${response.status} ${response.statusText}`);
    status.append(element("small", "", ` in ${Math.round(performance.now() - began)} ms`));
    const lines = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
    const pre = element("pre", "", "");
    pre.tabIndex = 0;
    const shown = element("code", "", "");
    pre.append(shown);
    output.replaceChildren(status, element("div", "headers", lines), pre);
    await showBody(response, shown);
    pre.hidden = shown.textContent === "";
  } catch (error) {
    const what = error.name === "AbortError" ? "Stopped." : `No response: ${error.message}`;
    output.append(element("p", "bad", what));
  } finally {
    stop.hidden = true;
  }
}

function prepare(form) {
  const curl = form.querySelector(".curl code");
  const refresh = () => { curl.textContent = curlOf(requestOf(form)); };
  form.addEventListener("input", refresh);
  const media = form.querySelector("select.media");
  if (media) {
    media.addEventListener("change", () => {
      form.querySelector("textarea.body").value = media.selectedOptions[0].dataset.text;
      refresh();
    });
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form);
  });
  const copy = form.querySelector(".copy");
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(curl.textContent);
    copy.textContent = "Copied";
    setTimeout(() => { copy.textContent = "Copy"; }, 1500);
  });
  refresh();
}

/** A link to an endpoint opens it. */
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}

function find(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  for (const item of document.querySelectorAll("nav li")) {
    const text = `${item.textContent} ${item.firstChild.title}`.toLowerCase();
    item.hidden = !wanted.every((word) => text.includes(word));
  }
}

/** Shows who is logged in, or the form to log in. */
function showUser(user, token) {
  hasUsers = user !== "";
  csrfToken = token ?? "";
  const logIn = document.getElementById("login-form");
  const logOut = document.getElementById("logout-form");
  logIn.hidden = user !== null;
  logOut.hidden = !user || csrfToken === "";
  logOut.querySelector("strong").textContent = user ?? "";
  document.querySelectorAll("form.try").forEach((form) => form.dispatchEvent(new Event("input")));
}

/** Asks who is logged in. A broker without users answers with an empty name. */
async function findUser() {
  const response = await fetch("/v1/whoami", { cache: "no-store" });
  if (response.ok) {
    const { user, csrf_token } = await response.json();
    showUser(user, csrf_token);
  } else if (response.status === 401) {
    showUser(null);
  }
}

async function logIn(event) {
  event.preventDefault();
  const form = event.target;
  const body = JSON.stringify({ token: form.token.value.trim() });
  form.token.value = "";
  const headers = { "Content-Type": "application/json" };
  const response = await fetch("/v1/login", { method: "POST", headers, body, cache: "no-store" });
  const reply = await response.json();
  form.querySelector("p").textContent = response.ok ? "" : reply.detail;
  if (response.ok) showUser(reply.user, reply.csrf_token);
}

async function logOut(event) {
  event.preventDefault();
  await fetch("/v1/logout", { method: "POST", headers: { "OnceMQ-CSRF": csrfToken }, cache: "no-store" });
  await findUser();
}

document.getElementById("login-form").addEventListener("submit", logIn);
document.getElementById("logout-form").addEventListener("submit", logOut);
document.querySelectorAll("form.try").forEach(prepare);
document.getElementById("find").addEventListener("input", (event) => find(event.target.value));
window.addEventListener("hashchange", openTarget);
openTarget();
findUser().catch(() => {
  // Without the broker, nobody can log in.
});
