// Making elements. All text goes in as text, so nothing that the program is called can be markup.

function el(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) set(made, name, value);
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) set(made, name, value);
  made.append(...children);
  return made;
}

function set(made, name, value) {
  if (value === null || value === undefined || value === false) return;
  // As a property: a style attribute would need another permission of the page's policy.
  if (name === "style") Object.entries(value).forEach(([key, v]) => made.style.setProperty(key, v));
  else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
  else made.setAttribute(name, value === true ? "" : value);
}

const byId = (id) => document.getElementById(id);

// Runs `work` once in the next frame, however often it was asked for.
function once(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}

const colour = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function cut(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1) + "…";
}

// A table of few rows; the first row is the head.
function smallTable(head, rows, label) {
  return el(
    "div",
    { class: "wide" },
    el(
      "table",
      { "aria-label": label },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          head.map((text) => el("th", { scope: "col" }, text)),
        ),
      ),
      el(
        "tbody",
        {},
        rows.map((cells) =>
          el(
            "tr",
            {},
            cells.map((cell) => el("td", {}, cell)),
          ),
        ),
      ),
    ),
  );
}
