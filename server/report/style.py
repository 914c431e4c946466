"""The page's style sheet. In a Python file, because Flower's app bundles carry no others."""

from __future__ import annotations

from server.report.palette import DARK, LIGHT


def style_sheet() -> str:
    """CSS with the colours of both themes."""
    light = f":root{{color-scheme:light dark;{_variables(LIGHT)}}}"
    dark = f"@media(prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}"
    return light + dark + _RULES


def _variables(colours: dict[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in colours.items())


_RULES = """
*{box-sizing:border-box}
html{scroll-padding-top:3.5rem;-webkit-text-size-adjust:100%}
@media(prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
body{margin:0;background:var(--paper);color:var(--ink);
  font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main,header>div,footer{max-width:68rem;margin:0 auto;padding:0 1rem}
header{padding-top:1.5rem}
h1{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .4rem;overflow-wrap:anywhere}
h2{font-size:1.35rem;margin:2.6rem 0 .3rem;padding-top:.6rem;border-top:1px solid var(--grid)}
section:first-child h2{margin-top:1rem;border-top:0}
h3{font-size:1.08rem;margin:0}
p{margin:.5rem 0}
a{color:var(--accent)}
.skip{position:absolute;left:-999rem}
.skip:focus{left:1rem;top:.5rem;background:var(--paper);padding:.5rem;z-index:9}
:focus-visible{outline:3px solid var(--accent);outline-offset:2px;border-radius:3px}
nav{position:sticky;top:0;z-index:5;background:var(--paper);border-bottom:1px solid var(--grid)}
nav ul{max-width:68rem;margin:0 auto;padding:.35rem 1rem;display:flex;gap:.25rem 1.1rem;list-style:none;
  overflow-x:auto;white-space:nowrap}
nav a{display:inline-block;padding:.35rem 0;text-decoration:none}
nav a:hover{text-decoration:underline}
.facts{color:var(--muted);margin:0;overflow-wrap:anywhere}
.outcome{font-weight:600}
.outcome.finished{color:var(--good)}
.outcome.failed,.outcome.interrupted{color:var(--bad)}
.lead{font-size:1.1rem}
.lead p{margin:.55rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.6rem,1fr));gap:.6rem;margin:1.1rem 0;
  padding:0;list-style:none}
.tiles li{background:var(--panel);border:1px solid var(--grid);border-radius:8px;padding:.6rem .8rem}
.tiles b{display:block;font-size:1.45rem;line-height:1.25;font-variant-numeric:tabular-nums}
.tiles span{color:var(--muted);font-size:.88rem}
.verdict{border-left:5px solid var(--line);background:var(--panel);padding:.6rem .9rem;margin:.9rem 0;
  border-radius:0 8px 8px 0}
.verdict.yes{border-color:var(--good)}.verdict.no{border-color:var(--bad)}.verdict.unsure{border-color:var(--g1)}
.verdict p{margin:.25rem 0}
figure{margin:1.4rem 0;padding:.9rem .9rem .5rem;border:1px solid var(--grid);border-radius:10px}
figure .top{display:flex;flex-wrap:wrap;gap:.3rem 1rem;align-items:baseline;justify-content:space-between}
figcaption{color:var(--muted);font-size:.93rem;margin:.2rem 0 .5rem;max-width:58rem}
.plot{width:100%;min-height:14rem}
.plot.failed{min-height:0;color:var(--bad)}
button{font:inherit;font-size:.88rem;color:var(--accent);background:none;border:1px solid var(--line);
  border-radius:6px;padding:.3rem .7rem;min-height:2rem;cursor:pointer}
button:hover{background:var(--panel)}
.scroll{width:fit-content;max-width:100%;overflow-x:auto;
  max-height:34rem;overflow-y:auto;border:1px solid var(--grid);border-radius:8px}
table{border-collapse:collapse;min-width:min(100%,34rem);font-size:.92rem;font-variant-numeric:tabular-nums}
section>h3{margin:1.4rem 0 .3rem}
th,td{padding:.38rem .55rem;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th{position:sticky;top:0;background:var(--panel);font-weight:600}
td.n,th.n{text-align:right}
tbody th{position:static;background:none;font-weight:600;overflow-wrap:break-word;min-width:4.5rem;max-width:16rem}
td,th button{white-space:nowrap}
td.why{white-space:normal;overflow-wrap:anywhere;min-width:14rem}
th button{border:0;padding:0;min-height:0;color:inherit;font-weight:600;font-size:inherit;text-align:inherit}
th button::after{content:" \\2195";color:var(--muted)}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
tr.subject td,tr.subject th{font-weight:700}
.chip{display:inline-block;white-space:nowrap;font-weight:600}
details{margin:1rem 0}
summary{cursor:pointer;padding:.3rem 0}
.note{color:var(--bad)}
.tip{position:fixed;z-index:10;pointer-events:none;background:var(--ink);color:var(--paper);
  padding:.3rem .55rem;border-radius:5px;font-size:.85rem;max-width:16rem;overflow-wrap:anywhere}
.tip[hidden]{display:none}
#live{color:var(--muted);font-size:.9rem}
footer{color:var(--muted);font-size:.88rem;padding:2rem 1rem 3rem}
@media(max-width:40rem){figure{padding:.7rem .4rem .3rem;margin-left:-.4rem;
  margin-right:-.4rem}h1{font-size:1.4rem}.lead{font-size:1.03rem}}
@media print{nav,button,.skip{display:none}figure{break-inside:avoid}.scroll{max-height:none}}
"""
