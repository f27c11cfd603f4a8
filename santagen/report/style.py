"""The page's style and script, as text to put into it.

Both modes of colour are here; the contrast of each pair of text and ground is at least 4.5 to 1,
which a test computes.
"""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark;
  --ground: #ffffff; --panel: #f3f4f6; --text: #1b1f24; --muted: #545d68; --line: #6e7781;
  --bar: #0b5cad; --warn: #8a3b00; --focus: #0b5cad;
  --s0: #f3f4f6; --s1: #dcf1e0; --s2: #aadfb6; --s3: #6cc283; --s4: #227a3a; --s5: #14532d;
  --t0: #1b1f24; --t1: #1b1f24; --t2: #1b1f24; --t3: #0d1a10; --t4: #ffffff; --t5: #ffffff; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #0d1117; --panel: #1c222b; --text: #e6edf3; --muted: #a5b0bc; --line: #7d8794;
  --bar: #6cb2ff; --warn: #ffb77c; --focus: #6cb2ff;
  --s0: #21262d; --s1: #12301c; --s2: #17452a; --s3: #1d6438; --s4: #4ac26b; --s5: #a6f0b9;
  --t0: #e6edf3; --t1: #e6edf3; --t2: #e6edf3; --t3: #ffffff; --t4: #06140b; --t5: #06140b; } }
* { box-sizing: border-box; }
html { background: var(--ground); color: var(--text);
  font: 1rem/1.5 system-ui, sans-serif; -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
h1, h2, h3, p, dd, li { overflow-wrap: anywhere; }
th, td, td p { overflow-wrap: break-word; }
.note, .legend, .file { color: var(--muted); font-size: .875rem; }
.partial { border-left: .25rem solid var(--warn); padding-left: .75rem; color: var(--warn); }
a { color: var(--bar); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; }
dt { color: var(--muted); } dd { margin: 0; }
figure { margin: 1.5rem 0; }
.picture { display: block; width: 100%; max-width: 40rem; height: auto; }
.picture text { font: 11px system-ui, sans-serif; fill: var(--text); }
.picture .middle { text-anchor: middle; } .picture .end, .picture .value { text-anchor: end; }
.picture .bar { fill: var(--bar); } .picture .dot { fill: var(--bar); }
.picture .less { fill: var(--warn); }
.picture .inner { stroke: var(--bar); stroke-width: 6; opacity: .55; }
.picture .outer { stroke: var(--bar); stroke-width: 2; }
.picture .axis { stroke: var(--line); }
.picture .zero { stroke: var(--line); stroke-dasharray: 3 3; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(1.75rem, 1fr)); gap: 3px; }
.cell { display: grid; place-items: center; height: 1.75rem; border-radius: 4px;
  font-size: .8rem; text-decoration: none; border: 1px solid transparent; }
.s0 { background: var(--s0); color: var(--t0); border-color: var(--line); }
.s1 { background: var(--s1); color: var(--t1); } .s2 { background: var(--s2); color: var(--t2); }
.s3 { background: var(--s3); color: var(--t3); } .s4 { background: var(--s4); color: var(--t4); }
.s5 { background: var(--s5); color: var(--t5); }
.cell[aria-current] { outline: 2px solid var(--text); outline-offset: 1px; }
:focus-visible { outline: 3px solid var(--focus); outline-offset: 2px; }
.detail { background: var(--panel); border-radius: 6px; padding: .75rem; margin-top: .75rem; }
.detail h4 { margin: 0 0 .25rem; } .detail p { margin: 0 0 .5rem; }
.detail pre { max-height: 18rem; }
.code { background: var(--panel); color: var(--text); padding: .5rem; margin: 0; overflow: auto;
  max-height: 24rem; max-width: 100%; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate; font: .8rem/1.4 ui-monospace, monospace; tab-size: 4; }
details { margin: .5rem 0; } summary { cursor: pointer; padding: .25rem 0; color: var(--bar); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; min-width: 100%; }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line); }
.said { margin: 0 0 .25rem; } td .code { min-width: 16rem; }
tr:target { outline: 2px solid var(--focus); }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
@media print { .detail { display: none; } }
"""

SCRIPT = """
"use strict";
for (const grid of document.querySelectorAll(".grid")) {
  const cells = Array.from(grid.querySelectorAll(".cell"));
  const detail = grid.parentElement.querySelector(".detail");
  let chosen = null;
  const show = (cell) => {
    if (cell === chosen) return;
    if (chosen) chosen.removeAttribute("aria-current");
    chosen = cell;
    cell.setAttribute("aria-current", "true");
    const row = document.getElementById(cell.getAttribute("href").slice(1));
    const [name, passed, how, sample] = row.children;
    const heading = document.createElement("h4");
    heading.textContent = name.textContent + ": " + passed.textContent + " passed";
    const classes = document.createElement("p");
    classes.textContent = how.textContent;
    const parts = Array.from(sample.children, (part) => part.cloneNode(true));
    detail.replaceChildren(heading, classes, ...parts);
    detail.hidden = false;
  };
  const perLine = () => {
    const top = cells[0].offsetTop;
    const next = cells.findIndex((cell) => cell.offsetTop !== top);
    return next < 0 ? cells.length : next;
  };
  const steps = { ArrowRight: () => 1, ArrowLeft: () => -1, ArrowDown: perLine,
    ArrowUp: () => -perLine(), Home: () => -cells.length, End: () => cells.length };
  cells.forEach((cell, at) => {
    cell.tabIndex = at ? -1 : 0;
    cell.addEventListener("mouseenter", () => show(cell));
    cell.addEventListener("focus", () => show(cell));
    cell.addEventListener("click", (event) => { event.preventDefault(); show(cell); });
    cell.addEventListener("keydown", (event) => {
      const step = steps[event.key];
      if (!step) return;
      event.preventDefault();
      const to = cells[Math.max(0, Math.min(cells.length - 1, at + step()))];
      cell.tabIndex = -1;
      to.tabIndex = 0;
      to.focus();
    });
  });
}
"""
