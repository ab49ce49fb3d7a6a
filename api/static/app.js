// What every page does: theme, copy buttons, the facts of an open finding, local time on hover, and keys.
"use strict";
(() => {
  const all = (selector, root) => [...(root || document).querySelectorAll(selector)];

  // Kept in a cookie, so that the server renders the first paint in the right colours.
  const themes = ["", "dark", "light"];
  document.addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme || "") + 1) % themes.length];
    if (next) root.dataset.theme = next;
    else delete root.dataset.theme;
    document.cookie = `slowrank_theme=${next}; path=/; max-age=31536000; samesite=strict`;
    document.dispatchEvent(new Event("slowrank:theme"));
  });

  async function copy(text) {
    // The clipboard API exists on https and loopback only.
    if (navigator.clipboard) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    await copy(button.parentElement.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  document.addEventListener("mouseover", (event) => {
    const time = event.target.closest && event.target.closest("time[datetime]");
    const node = event.target.closest && event.target.closest("a.node");
    if (node && !node.title) node.title = node.getAttribute("aria-label");
    if (time && !time.title) time.title = new Date(time.dateTime).toLocaleString(undefined, { timeZoneName: "short" });
  });

  // What an open finding costs is read anew and not reckoned here, so that every page shows the same.
  async function refresh() {
    const facts = document.querySelector("[data-live]");
    if (!facts || document.hidden) return;
    const answer = await fetch(location.href).catch(() => null);
    if (!answer || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector(".facts");
    if (fresh) facts.replaceWith(fresh);
  }
  setInterval(refresh, 15000);
  document.addEventListener("visibilitychange", refresh);

  // j and k move through rows, Enter opens one, a and s go to its forms.
  let at = -1;
  const forms = { a: "acknowledge", s: "silence" };
  function select(index) {
    const rows = all("[data-row]");
    if (!rows.length) return;
    rows.forEach((row) => row.classList.remove("at"));
    at = Math.min(rows.length - 1, Math.max(0, index));
    rows[at].classList.add("at");
    const link = rows[at].querySelector("a");
    link.focus({ preventScroll: true });
    rows[at].scrollIntoView({ block: "nearest" });
  }
  function open(form) {
    const here = document.getElementById(form);
    if (here) {
      here.open = true;
      here.scrollIntoView({ block: "center" });
      here.querySelector("input:not([type=hidden]), select").focus();
      return true;
    }
    const row = document.querySelector("[data-row].at a");
    if (row) location.assign(`${row.getAttribute("href")}#${form}`);
    return Boolean(row);
  }
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
    const choice = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
    if (event.key === "j") select(at + 1);
    else if (event.key === "k") select(at - 1);
    else if (choice) choice.click();
    else if (!(event.key in forms) || !open(forms[event.key])) return;
    event.preventDefault();
  });

  // After a part of the page was fetched anew the same row is selected, and a lost connection is shown.
  const offline = (is) => all("[data-offline]").forEach((notice) => { notice.hidden = !is; });
  let focused = "";
  document.addEventListener("htmx:beforeSwap", () => {
    const here = document.activeElement;
    focused = here && here.closest("#now") ? here.getAttribute("href") || "" : "";
  });
  document.addEventListener("htmx:afterSettle", () => {
    const rows = all("[data-row]");
    if (rows[at]) rows[at].classList.add("at");
    const again = focused && all("#now a").find((link) => link.getAttribute("href") === focused);
    if (again) again.focus({ preventScroll: true });
    offline(false);
  });
  document.addEventListener("htmx:sendError", () => offline(true));
  document.addEventListener("htmx:responseError", () => offline(true));

  // A link to a part that is folded opens it.
  const unfold = () => {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  addEventListener("hashchange", unfold);
  unfold();

  // After the load: the browser's own jump to the fragment takes the focus away.
  addEventListener("load", () => setTimeout(() => {
    const form = location.hash.slice(1);
    if (Object.values(forms).includes(form)) open(form);
  }));
})();
