"""How the page looks, in light and dark, on paper and on a phone."""

__all__ = ["STYLE"]

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2228; --soft: #59636e;
  --rule: #d5dae0; --gap: #eceff2; --card: #f6f8fa; --link: #0b5cad; --point: #b3400a;
  --c0: #0072b2; --c1: #e69f00; --c2: #009e73; --c3: #cc79a7; --c4: #56b4e9; --c5: #d55e00;
  --c6: #b5a800; --c7: #8a8f94;
  --l0: #e4e7ea; --l1: #b9d3e6; --l2: #84b2d3; --l3: #4a8dbb; --l4: #11609b; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181c; --ink: #e8ecf0; --soft: #a3adb8;
  --rule: #39424b; --gap: #232a31; --card: #1c2228; --link: #7cc0f5; --point: #ffa45c;
  --c0: #56b4e9; --c1: #e69f00; --c2: #23b890; --c3: #d68fb6; --c4: #9ad5f5; --c5: #f07f38;
  --c6: #f0e442; --c7: #9aa2a9;
  --l0: #2a323a; --l1: #27506e; --l2: #2f73a0; --l3: #4f9fd0; --l4: #9bd2f5; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%; text-size-adjust: 100%; overflow-wrap: anywhere; }
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 16px; }
header { padding-top: 20px; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 8px; }
h2 { font-size: 1.25rem; margin: 40px 0 8px; padding-top: 10px; border-top: 1px solid var(--rule); }
h3 { font-size: 1.05rem; margin: 24px 0 4px; }
p { max-width: 46em; margin: 6px 0 12px; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 8px 0; padding: 0;
  list-style: none; }
nav a { display: inline-block; padding: 4px 0; }
.figures { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 330px), 1fr)); }
.tables { display: grid; gap: 0 32px;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); }
figure { margin: 0; min-width: 0; }
figcaption { font-size: .875rem; line-height: 1.35; margin-bottom: 4px; color: var(--ink); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 2px 0 6px; padding: 0;
  list-style: none; font-size: .8125rem; color: var(--soft); }
.legend i { display: inline-block; width: 14px; height: 11px; margin-right: 5px;
  vertical-align: -1px; background: var(--k); border-radius: 2px; }
.legend i.line { height: 3px; vertical-align: 4px; }
.legend i.dot { width: 8px; height: 8px; border-radius: 50%; vertical-align: 0; }
.legend i.band { opacity: .3; }
.legend i.gap, .legend i.outside { border: 1px solid var(--rule); }
.scroll { min-width: 0; overflow-x: auto; margin: 8px 0 20px; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
caption { text-align: left; padding-bottom: 4px; line-height: 1.4; }
caption span { color: var(--soft); }
th, td { padding: 4px 8px; text-align: right; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; }
thead th { color: var(--soft); vertical-align: bottom; }
tbody th { font-weight: 400; }
th:first-child, td:first-child, .words td { text-align: left; padding-left: 0; }
.words td, .words th { padding-left: 0; padding-right: 16px; text-align: left; }
svg { display: block; width: 100%; height: auto; font-size: 12px; }
svg text { fill: var(--soft); }
.grid { stroke: var(--rule); fill: none; stroke-width: 1; }
.line { stroke: var(--k); fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.dashed { stroke-dasharray: 5 4; stroke-width: 1.2; }
.band { fill: var(--k); opacity: .25; }
.fill { fill: var(--k); }
.dot { fill: var(--k); }
.gap { fill: var(--gap); --k: var(--gap); }
.cell { fill: var(--k); shape-rendering: crispEdges; }
.point { --k: var(--point); } .plain { --k: var(--soft); } .outside { --k: var(--paper); }
.k0 { --k: var(--c0); } .k1 { --k: var(--c1); } .k2 { --k: var(--c2); } .k3 { --k: var(--c3); }
.k4 { --k: var(--c4); } .k5 { --k: var(--c5); } .k6 { --k: var(--c6); } .k7 { --k: var(--c7); }
.l0 { --k: var(--l0); } .l1 { --k: var(--l1); } .l2 { --k: var(--l2); } .l3 { --k: var(--l3); }
.l4 { --k: var(--l4); }
footer { margin-top: 40px; padding-top: 10px; padding-bottom: 24px; color: var(--soft);
  font-size: .875rem; border-top: 1px solid var(--rule); }
@media (max-width: 480px) { th, td { padding: 4px 5px; } table { font-size: .8125rem; } }
@media print { section { break-inside: auto; } figure { break-inside: avoid; } }
"""
