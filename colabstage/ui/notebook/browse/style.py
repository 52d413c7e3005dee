"""The browser's rules of style. Buttons without a face lie on the grid and on the bars, in the same places: so a click
on a picture reaches Python with the widgets that every notebook has, of any version, and without a script."""

from __future__ import annotations

from colabstage.page import STYLE, TEXT_COLOUR

_COLUMNS = (
    "display:grid!important;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));grid-auto-rows:176px;gap:8px"
)
_BARS = "display:grid!important;grid-auto-rows:24px;gap:0"

BROWSE_STYLE = (
    STYLE
    + "<style>"
    + f".cs-browse,.cs-browse .widget-html-content{{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;"
    f"font-size:13px;line-height:1.4;color:{TEXT_COLOUR}}}"
    f".cs-browse .cs-grid,.cs-browse .cs-over-grid{{{_COLUMNS};width:100%}}"
    f".cs-browse .cs-bars,.cs-browse .cs-over-bars{{{_BARS};width:100%}}"
    """
.cs-browse .cs-stack{display:grid!important;overflow:visible}
.cs-browse .cs-stack>*{grid-area:1/1;margin:0;width:100%;min-width:0;height:auto;align-self:start}
.cs-browse .cs-stack .widget-html-content,.cs-browse .cs-stack .jupyter-widgets{width:100%;max-width:none}
.cs-browse .cs-over{overflow:visible;margin:0;padding:0}
.cs-browse .cs-over>*{margin:0!important;width:auto!important;height:auto!important;max-width:none;min-width:0;
background:transparent!important;box-shadow:none!important;border:2px solid transparent!important;border-radius:6px;
color:transparent}
.cs-browse .cs-over>*:hover,.cs-browse .cs-over>*:focus-visible{border-color:#2a86b0!important;outline:none}
.cs-cell{display:flex;flex-direction:column;min-width:0;padding:4px;border-radius:6px;background:rgba(128,136,144,.1)}
.cs-face{flex:1 1 auto;min-height:0;display:flex;align-items:center;justify-content:center;overflow:hidden}
.cs-face .cs-picture{width:100%;height:100%}
.cs-picture{display:block;overflow:hidden}
.cs-name{flex:none;height:18px;line-height:18px;font-size:12px;white-space:nowrap;overflow:hidden;
text-overflow:ellipsis}
.cs-muted{opacity:.72}
.cs-text{font:11px/1.35 ui-monospace,Menlo,Consolas,monospace;width:100%;max-height:100%;overflow:hidden;
white-space:pre-wrap;overflow-wrap:anywhere}
.cs-broken{font-size:11px;color:#d64545;align-items:flex-start;overflow-wrap:anywhere}
.cs-legend{display:flex;flex-wrap:wrap;gap:2px 14px;margin:6px 0}
.cs-chip{white-space:nowrap}
.cs-chip i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:5px;vertical-align:-1px}
.cs-bar{position:relative;padding:0 6px;border-radius:4px;display:flex;justify-content:space-between;gap:8px;
line-height:20px;height:24px}
.cs-bar i{position:absolute;left:4px;bottom:1px;height:3px;border-radius:2px;max-width:calc(100% - 8px)}
.cs-bar-name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.cs-bar-count{font-variant-numeric:tabular-nums;opacity:.8}
.cs-chosen{background:rgba(42,134,176,.22);font-weight:600}
.cs-large{display:flex;flex-wrap:wrap;gap:20px;align-items:flex-start}
.cs-large>div:last-child{flex:1 1 220px;min-width:0}
.cs-large>div:first-child{flex:0 1 auto;min-width:200px;max-width:100%}
.cs-large .cs-picture{height:auto;max-height:640px}
.cs-large .cs-text{max-width:640px}
</style>"""
)
