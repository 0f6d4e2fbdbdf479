"""The page's style sheet: system fonts, eight series colours, light and dark by the reader's preference."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #fcfcfb; --panel: #ffffff; --ink: #16191d; --soft: #5b6470; --faint: #8a929c;
  --rule: #e4e6e9; --grid: #eceef0; --track: #eceef1; --shadow: 0 1px 2px rgb(22 25 29 / .05);
  --good: #1a7f4b; --warn: #9a6700; --bad: #c1362f; --warn-paper: #fff6dc; --bad-paper: #fdecea; --info-paper: #eef3fb;
  --c0: #2f62d0; --c1: #d3691a; --c2: #12857b; --c3: #a83f8c; --c4: #7d7a0a; --c5: #6d51c4; --c6: #3f8f35; --c7: #c0392f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #101317; --panel: #171b20; --ink: #e8ebee; --soft: #a3acb7; --faint: #78818c;
    --rule: #2a3037; --grid: #22272e; --track: #252b32; --shadow: none;
    --good: #58c78b; --warn: #e0b04a; --bad: #f0837b; --warn-paper: #2b2414; --bad-paper: #301c1b; --info-paper: #1a2433;
    --c0: #7ba4ff; --c1: #f29a54; --c2: #45c0b3; --c3: #e086c6; --c4: #c6c247; --c5: #ab96f5; --c6: #83cf79; --c7: #f0837b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1136px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 19px; letter-spacing: -.01em; margin: 48px 0 4px; }
h3 { font-size: 14px; margin: 0; font-weight: 600; }
p { margin: 0; }
.lead { color: var(--soft); max-width: 72ch; margin-bottom: 16px; }
.eyebrow { color: var(--faint); font-size: 12px; letter-spacing: .08em; text-transform: uppercase; margin-bottom: 6px; }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 14px; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: .88em; }
.soft { color: var(--soft); }
.panel { background: var(--panel); border: 1px solid var(--rule); border-radius: 10px; box-shadow: var(--shadow); }

.pill { display: inline-flex; align-items: center; gap: 6px; font-size: 13px; font-weight: 600; white-space: nowrap; }
.pill::before { content: ""; width: 9px; height: 9px; border-radius: 50%; background: currentColor; }
.done { color: var(--good); } .running { color: var(--c0); } .failed { color: var(--bad); } .waiting { color: var(--warn); }
.other { color: var(--faint); }
h1 + .pill { border: 1px solid var(--rule); border-radius: 99px; padding: 2px 11px 2px 9px; background: var(--panel); }

dl.facts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 16px 0 0; font-size: 13.5px; }
dl.facts div { display: flex; gap: 7px; min-width: 0; }
dl.facts dt { color: var(--faint); }
dl.facts dd { margin: 0; overflow-wrap: anywhere; }

.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 14px; margin-top: 26px; }
.tile { padding: 14px 16px 13px; }
.tile .name { color: var(--soft); font-size: 13px; }
.tile .figure { font-size: 26px; line-height: 1.25; font-weight: 650; letter-spacing: -.02em; font-variant-numeric: tabular-nums; }
.tile .figure small { font-size: 14px; font-weight: 500; color: var(--soft); letter-spacing: 0; white-space: nowrap; display: inline-block; }
.tile .note { color: var(--soft); font-size: 13px; }

.alerts { list-style: none; margin: 22px 0 0; padding: 0; display: grid; gap: 8px; }
.alerts li { padding: 9px 14px; border-radius: 8px; background: var(--info-paper); border-left: 3px solid var(--c0);
  overflow-wrap: anywhere; }
.alerts .warning { background: var(--warn-paper); border-color: var(--warn); }
.alerts .error { background: var(--bad-paper); border-color: var(--bad); }
.alerts b { text-transform: capitalize; margin-right: 4px; }
.alerts time { color: var(--soft); font-size: 13px; margin-left: 6px; white-space: nowrap; }

svg.bar { display: block; height: 10px; border-radius: 3px; background: var(--track); overflow: hidden; }
svg.bar rect { fill: var(--color, var(--c0)); }
.faint { --color: var(--faint); }
svg.timeline { height: 30px; border-radius: 6px; overflow: hidden; margin-bottom: 14px; }
.timeline .track { fill: var(--track); } .timeline .fill { fill: var(--c0); }
.timeline .fill.done { fill: var(--good); } .timeline .fill.failed { fill: var(--bad); } .timeline .fill.waiting { fill: var(--warn); }
.timeline .cut { stroke: var(--paper); stroke-width: 3; }
.timeline text { fill: var(--ink); font-weight: 650; font-size: 12px; } .timeline text.on { fill: var(--paper); }
.stages { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); gap: 14px; margin-bottom: 14px; }
.stage-card { padding: 12px 14px; }
.stage-card p { font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
.stage-card p.now { color: var(--ink); }
.stage-card .head { display: flex; flex-wrap: wrap; gap: 0 10px; align-items: baseline; justify-content: space-between; }
.stage-card svg.bar { height: 6px; margin: 7px 0 8px; }

.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(330px, 100%), 1fr)); gap: 14px; }
figure { margin: 0; padding: 13px 14px 6px; min-width: 0; }
figure.hero { grid-column: 1 / -1; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 8px; align-items: baseline; margin-bottom: 4px; }
figcaption span { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg.dag { width: auto; max-width: none; margin: 0 auto; }
.dag .box { fill: var(--panel); stroke: var(--color); stroke-width: 1.4; } .dag .dot { fill: var(--color); }
.dag .edge { fill: none; stroke: var(--faint); stroke-width: 1.2; } .dag .head { fill: var(--faint); }
.dag text { font-size: 12.5px; font-weight: 600; fill: var(--ink); } .dag text.note { font-size: 11px; font-weight: 400; fill: var(--soft); }
.dag .node { --color: var(--rule); } .dag .node .dot { fill: var(--faint); }
.dag .node.done, .dag .node.done .dot { --color: var(--good); fill: var(--good); }
.dag .node.running, .dag .node.running .dot { --color: var(--c0); fill: var(--c0); }
.dag .node.failed, .dag .node.failed .dot { --color: var(--bad); fill: var(--bad); }
.dag .node.stopped, .dag .node.stopped .dot { --color: var(--warn); fill: var(--warn); }
.dag-frame { padding: 18px; margin-bottom: 14px; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg .axis-title { fill: var(--faint); }
svg .stage-label { fill: var(--soft); font-weight: 600; }
svg .value { font-weight: 650; fill: var(--color); }
svg .empty { text-anchor: middle; fill: var(--faint); }
svg .grid { stroke: var(--grid); } svg .axis { stroke: var(--faint); stroke-width: .8; }
svg .stage { stroke: var(--faint); stroke-dasharray: 2 3; }
svg .line { fill: none; stroke: var(--color); stroke-width: 1.9; stroke-linejoin: round; stroke-linecap: round; }
svg .raw { fill: none; stroke: var(--color); stroke-width: 1; opacity: .3; stroke-linejoin: round; }
svg .level { stroke: var(--ink); stroke-dasharray: 5 4; stroke-width: 1; opacity: .7; }
svg .reached { fill: var(--paper); stroke: var(--ink); stroke-width: 1.8; } svg .level-label { fill: var(--ink); font-weight: 650;
  paint-order: stroke; stroke: var(--panel); stroke-width: 4px; stroke-linejoin: round; }
svg .dot, svg .end { fill: var(--color); }
.c0 { --color: var(--c0); } .c1 { --color: var(--c1); } .c2 { --color: var(--c2); } .c3 { --color: var(--c3); }
.c4 { --color: var(--c4); } .c5 { --color: var(--c5); } .c6 { --color: var(--c6); } .c7 { --color: var(--c7); }
.medium, .narrow { display: none; }
.log { max-height: 340px; overflow: auto; display: flex; flex-direction: column-reverse; }
.log pre { padding: 12px 14px; margin: 0; font-size: 12.5px; line-height: 1.5; }
section:empty { display: none; }
section > h2:first-child { margin-top: 48px; }
.gap { margin-top: 14px; }
header > .lead { margin: 8px 0 0; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; margin-bottom: 22px; font-size: 13.5px; color: var(--soft); }
nav .live { margin-left: auto; display: inline-flex; gap: 7px; align-items: center; font-variant-numeric: tabular-nums; }
nav .live::before { content: ""; width: 8px; height: 8px; border-radius: 50%; background: var(--faint); }
nav .live.on::before { background: var(--good); } nav .live.off { color: var(--bad); } nav .live.off::before { background: var(--bad); }
a { color: var(--c0); text-decoration-thickness: 1px; text-underline-offset: 2px; }
tr.same th, tr.same td { color: var(--faint); }
td.value { max-width: 320px; overflow: hidden; text-overflow: ellipsis; }
button { font: inherit; font-size: 13.5px; padding: 5px 14px; border-radius: 7px; border: 1px solid var(--rule);
  background: var(--panel); color: var(--ink); cursor: pointer; } input[type=checkbox] { accent-color: var(--c0); }
@media (max-width: 960px) { .wide { display: none; } .medium { display: block; } }
@media (max-width: 560px) { .medium { display: none; } .narrow { display: block; } }
.legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-bottom: 12px; font-size: 13.5px; }
.legend span { display: inline-flex; align-items: center; gap: 7px; }
.legend span::before { content: ""; width: 16px; height: 3px; border-radius: 2px; background: var(--color); }

.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; vertical-align: top; border-top: 1px solid var(--rule); white-space: nowrap; }
td.words { white-space: normal; min-width: 200px; text-align: left; }
thead th { border-top: 0; font-weight: 600; color: var(--soft); vertical-align: bottom; line-height: 1.3; }
thead th small { display: block; font-weight: 400; color: var(--faint); }
th:first-child, td.left, th.left { text-align: left; }
th.span { text-align: center; border-bottom: 1px solid var(--rule); }
tbody th { font-weight: 600; position: sticky; left: 0; background: var(--panel); }
tbody th small { display: block; font-weight: 400; color: var(--faint); white-space: normal; min-width: 24ch; max-width: 40ch; }
thead th:first-child { position: sticky; left: 0; background: var(--panel); }
tr.reference th, tr.reference td { color: var(--soft); font-weight: 400; }
td small { display: block; color: var(--faint); font-size: 12px; }
td svg.bar { height: 4px; margin-top: 5px; width: 110px; margin-left: auto; }
td.mixture { min-width: 170px; }
td.mixture .row { display: flex; align-items: center; gap: 10px; }
td.mixture svg.bar { flex: 1; height: 9px; margin: 0; width: auto; min-width: 60px; }
td.mixture .row span:last-child { width: 50px; }
.best { font-weight: 700; color: var(--ink); } .above { color: var(--good); font-weight: 600; }
.note-line { color: var(--soft); font-size: 13px; margin-top: 9px; max-width: 84ch; }
.run { border-top: 1px solid var(--rule); margin-top: 64px; padding-top: 36px; }
.run h1 { font-size: 24px; }
footer { color: var(--faint); font-size: 13px; margin-top: 56px; }
@media (max-width: 560px) {
  main { padding: 24px 14px 48px; }
  h1 { font-size: 24px; }
  h2 { margin-top: 38px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 10px; }
  .tile { padding: 11px 12px; } .tile .figure { font-size: 22px; }
  th, td { padding: 7px 10px; }
  tbody th, thead th:first-child { min-width: 116px; max-width: 132px; white-space: normal; overflow-wrap: anywhere; }
  .dag-frame { padding: 12px; }
  .rare { display: none; }
}
.pick tbody th:first-child, .pick thead th:first-child { min-width: 0; width: 1%; padding-right: 0; }
@media print { main { max-width: none; padding: 0; } .panel { break-inside: avoid; } }
"""
