"""The style sheet of pages, for a desk and for a telephone."""

STYLE = """
:root { color-scheme: light; --line: #2563a8; --soft: #dce8f5 }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", Arial, sans-serif; color: #1c1c1c; margin: 0 auto;
  max-width: 1080px; padding: 1rem; overflow-wrap: anywhere }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 }
h2 { font-size: 1.15rem; margin: 1.6rem 0 .5rem; border-bottom: 1px solid #bbb }
p { margin: .4rem 0 }
header p { color: #444 }
.findings { border-left: 4px solid var(--line); padding: .3rem 0 .3rem 1rem; font-size: 1.1rem; background: #f6f9fc }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #ddd }
thead th { background: #f2f2f2 }
img { max-width: 100%; height: auto }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(310px, 1fr)); gap: .8rem }
.figures img { width: 100% }
.wide { overflow-x: auto } .wide img { min-width: 560px; max-width: 100% }
.wide table { min-width: 560px; overflow-wrap: normal }
.ask { display: grid; grid-template-columns: minmax(240px, 1fr) 2fr; gap: 1.5rem }
.ask > * { min-width: 0 }
#asked { display: flex; flex-direction: column; gap: .5rem; max-height: 30rem; overflow-y: auto; padding-right: .5rem }
#asked label { display: grid; grid-template-columns: 1fr auto; font-size: .9rem }
#asked input, #asked select { grid-column: 1 / 3; width: 100%; min-height: 1.8rem }
output { font-variant-numeric: tabular-nums }
#answer { margin: 0 } #number { font-size: 1.8rem; font-weight: 600; margin: 0 } #number:empty { display: none }
#ends { color: #444; margin: 0 0 .6rem; min-height: 1.5em }
.chart { width: 100%; height: auto } .chart text { font-size: 13px; fill: #333 } .chart .name { font-weight: 600 }
.chart .rule { stroke: #e5e5e5 } .chart .zero { stroke: #999 } .chart .band { fill: var(--soft) }
.chart .line { fill: none; stroke: var(--line); stroke-width: 2.5 } .chart .point { fill: var(--line) }
.chart .whisker { stroke: var(--line); stroke-width: 3; opacity: .45 }
details { margin: 1.5rem 0; border: 1px solid #ccc; padding: .5rem 1rem } summary { cursor: pointer; font-weight: 600 }
.card { font-size: .85rem } .card h1 { font-size: 1.1rem } .card h2 { font-size: .95rem; margin: .9rem 0 .2rem }
.card th { width: 11rem } .card ul { padding-left: 1.2rem; margin: .2rem 0 } .card .blank { color: #8a5a00 }
.card table { display: block; overflow-x: auto }
.level { font-weight: 700 }
@media (max-width: 640px) { .ask { grid-template-columns: 1fr } #asked { max-height: none } body { padding: .7rem }
  .chart text { font-size: 20px } }
"""
