"""The page of `kinoray ui`, in Dash: the table, and what is chosen in it. Text from runs is text here, never markup.

Dash and AG Grid put values into the page as text nodes; plotly alone reads a little markup, so its names are escaped.
What a browser sends names a run of the table, or is refused: no path comes from there.
"""

import datetime
import hashlib
import html as markup
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs

import dash_ag_grid as dag
from dash import Dash, Input, Output, State, dcc, html, no_update

from kinoray.browse.run_details import LOSS, Curve, curve_names, curves, differences
from kinoray.browse.run_list import Known, Row
from kinoray.browse.run_table import OF_EVERY_RUN, groups, read_table, score_names, setting_names, value_of
from kinoray.display.text import printable, show
from kinoray.errors import KinorayError

REFRESH_S = 3.0
MOST_COMPARED = 8
"""Runs whose curves and configurations stand side by side."""
COLOURS = ("#3b82c4", "#e07b39", "#3fa45b", "#c9485b", "#8e6bbf", "#97704c", "#d67ab1", "#7f8c1f")
"""Readable on white and on black."""
ROW_PX, HEADS_PX = 30, 96
STATES = ("finished", "stopped", "failed", "damaged", "running")
"""Each has its colour; of a run whose seeds are in several, the last of these that is among them."""
NOTHING_CHOSEN = "Choose runs in the table: their curves and what differs in their configurations appear here."


def make_page(root: Path, refresh_s: float = REFRESH_S) -> Dash:
    """The page over a runs folder; it reads what changed there every `refresh_s` seconds."""
    app = Dash("kinoray.browse", title="kinoray runs", update_title="", serve_locally=True, include_assets_files=True)
    known: Known = {}
    latest: list[Row] = []
    """What was read last: by the page that was opened, or the tick that came, last. Everything else looks here."""
    reading = Lock()  # requests are answered side by side

    def read() -> list[Row]:
        with reading:
            latest[:] = read_table(root, known)
            return list(latest)

    read()
    app.layout = lambda: _layout(read(), root, refresh_s)

    @app.callback(
        Output("runs", "rowData"),
        Output("runs", "columnDefs"),
        Output("by", "options"),
        Output("runs", "style"),
        Output("told", "children"),
        Output("seen", "data"),
        Input("tick", "n_intervals"),
        State("seen", "data"),
        State("by", "value"),
        prevent_initial_call=True,
    )
    def refresh(_: int, seen: dict[str, str], by: str | None) -> tuple[Any, ...]:
        rows = read()
        now, told = _digests(rows), _status_line(rows, root)
        if now == seen:
            return (*[no_update] * 4, told, no_update)
        columns = no_update if now["columns"] == seen["columns"] else grid_columns(rows, by)
        return grid_rows(rows, by), columns, _group_options(rows), _height(rows), told, now

    @app.callback(Output("runs", "rowData", True), Output("runs", "columnDefs", True), Input("by", "value"),
                  prevent_initial_call=True)  # fmt: skip
    def with_setting(by: str | None) -> tuple[Any, ...]:
        rows = list(latest)
        return grid_rows(rows, by), grid_columns(rows, by)

    @app.callback(Output("runs", "dashGridOptions"), Input("find", "value"), State("runs", "dashGridOptions"))
    def find(text: str | None, options: dict[str, Any]) -> dict[str, Any]:
        return options | {"quickFilterText": text or ""}

    @app.callback(Output("groups", "children"), Input("runs", "virtualRowData"), Input("by", "value"))
    def grouped(shown: list[Row] | None, by: str | None) -> Any:
        if not by:
            return []
        rows = list(latest)
        listed = {row["id"] for row in shown} if shown is not None else {row["id"] for row in rows}
        return _group_tables(groups([row for row in rows if row["id"] in listed], by), by)

    @app.callback(
        Output("chosen", "children"),
        Output("what", "options"),
        Output("what", "placeholder"),
        Output("curves", "figure"),
        Output("curves", "style"),
        Output("differences", "children"),
        Input("runs", "selectedRows"),
        Input("what", "value"),
        Input("seen", "data"),
    )
    def compared(selected: list[Row] | dict[str, list[str]] | None, what: str | None, _: Any) -> tuple[Any, ...]:
        own = {row["id"]: row for row in list(latest) if not row["sweep"]}
        named = selected["ids"] if isinstance(selected, dict) else [row["id"] for row in selected or []]
        runs = [own[name] for name in named if name in own]
        return _compared(runs[:MOST_COMPARED], len(runs), root, what)

    @app.callback(
        Output("find", "value"),
        Output("by", "value"),
        Output("what", "value"),
        Output("runs", "selectedRows"),
        Input("address", "search"),
    )
    def opened(search: str | None) -> tuple[Any, ...]:
        """A view by its address: `?find=local&by=m&what=HM&run=NAME&run=NAME`."""
        asked = parse_qs((search or "").lstrip("?"))
        first = {name: values[0] for name, values in asked.items()}
        return first.get("find", ""), first.get("by"), first.get("what"), {"ids": asked.get("run", [])}

    return app


def _layout(rows: list[Row], root: Path, refresh_s: float) -> html.Div:
    options = {
        "rowSelection": {"mode": "multiRow", "enableClickSelection": True, "selectAll": "filtered"},
        "suppressFieldDotNotation": True,
        "tooltipShowDelay": 400,
        "animateRows": False,
        "rowHeight": ROW_PX,
        "headerHeight": 34,
        "groupHeaderHeight": 26,
        "overlayNoRowsTemplate": "No runs here yet.",
    }
    grid = dag.AgGrid(
        id="runs",
        rowData=grid_rows(rows),
        columnDefs=grid_columns(rows),
        defaultColDef={"sortable": True, "filter": True, "resizable": True, "minWidth": 64},
        dashGridOptions=options,
        getRowId="params.data.id",
        className="grid",
        style=_height(rows),
    )
    find = dcc.Input(id="find", type="search", placeholder="Find: method, stream, setting ...", debounce=False)
    by = dcc.Dropdown(_group_options(rows), id="by", placeholder="Group by a setting")
    what = dcc.Dropdown([], id="what", placeholder="Curve of")
    return html.Div(
        [
            html.Header([html.H1("kinoray runs"), html.P(_status_line(rows, root), id="told")]),
            html.Div([find, by], className="controls"),
            grid,
            html.Div(id="groups", className="tables beside"),
            html.P(NOTHING_CHOSEN, id="chosen"),
            html.Div(
                [
                    html.Section(
                        [what, dcc.Graph(id="curves", config={"displayModeBar": False}, style={"display": "none"})]
                    ),
                    html.Section(id="differences", className="tables"),
                ],
                className="beside",
            ),
            dcc.Location(id="address", refresh=False),
            dcc.Interval(id="tick", interval=1000 * refresh_s),
            dcc.Store(id="seen", data=_digests(rows)),
        ]
    )


def _height(rows: Sequence[Row]) -> dict[str, str]:
    """As high as its rows, up to about half of the window."""
    return {"height": f"min(max(20rem, 56vh), {HEADS_PX + ROW_PX * max(3, len(rows))}px)"}


def grid_columns(rows: Sequence[Row], by: str | None = None) -> list[dict[str, Any]]:
    """The columns: what matters first, scores under the name of their protocol, a column for the setting grouped by."""
    setting = [_column("by", by, 100)] if by and by not in OF_EVERY_RUN else []
    scores = [
        {
            "headerName": protocol,
            "children": [_number(f"{protocol}/{name}", name.replace("_", " "), "score") for name in names],
        }
        for protocol, names in score_names(rows).items()
    ]
    colours = {state: {"function": f"params.value.includes('{state}')"} for state in STATES}
    return [
        _column("state", "state", 92, tooltipField="state", cellClassRules=colours),
        _column("method", "method", 124, tooltipField="error"),
        _column("told", "settings", 150, flex=1, minWidth=150, tooltipField="told"),
        *setting,
        *scores,
        _column("stream", "stream", 120, tooltipField="stream"),
        _column("seeds", "seeds", 62),
        _column("date", "date", 130, sort="desc"),
        _number("cost_s", "time", "clock"),
        _column("page", "page", 64, cellRenderer="Page", pinned="right", sortable=False, filter=False),
    ]


def _column(field: str, title: str, width_px: int, **more: Any) -> dict[str, Any]:
    return {"field": field, "headerName": title, "width": width_px, **more}


def _number(field: str, title: str, shown_by: str) -> dict[str, Any]:
    """A column of numbers; shown_by: a function of assets/ui.js."""
    shown = {"function": f"{shown_by}(params.value)"}
    return _column(
        field, title, 72, filter="agNumberColumnFilter", type="rightAligned", valueFormatter=shown, wrapHeaderText=True
    )


def grid_rows(rows: Sequence[Row], by: str | None = None) -> list[dict[str, Any]]:
    """The rows for these columns."""
    columns = ("id", "state", "method", "told", "stream", "seeds", "date", "cost_s", "page", "error")
    return [
        {name: printable(row[name]) if isinstance(row[name], str) else row[name] for name in columns}
        | {f"{row['protocol']}/{name}": value for name, value in row["scores"].items()}
        | ({"by": value_of(row, by)} if by and not row["sweep"] else {})
        for row in rows
    ]


def _digests(rows: Sequence[Row]) -> dict[str, str]:
    """What a browser has: it is sent rows and columns only where they are others."""
    columns = json.dumps([score_names(rows), setting_names(rows)])
    return {"rows": hashlib.sha256(json.dumps(rows).encode()).hexdigest(), "columns": columns}


def _status_line(rows: Sequence[Row], root: Path) -> str:
    sweeps = sum(row["sweep"] for row in rows)
    running = sum("running" in row["state"] for row in rows)
    parts = [f"{len(rows) - sweeps} runs", f"{sweeps} sweeps", f"{running} running"]
    return f"{', '.join(parts)} in {printable(root)}, read {datetime.datetime.now():%H:%M:%S}"


def _group_options(rows: Sequence[Row]) -> list[str]:
    return [*setting_names(rows), *OF_EVERY_RUN]


def _group_tables(all_groups: Sequence[Row], by: str) -> list[html.Div]:
    """A table for each protocol: the scores of two cannot stand in one."""
    made = []
    for protocol in dict.fromkeys(group["protocol"] for group in all_groups):
        of_it = [group for group in all_groups if group["protocol"] == protocol]
        names = list(dict.fromkeys(name for group in of_it for name in group["scores"]))
        head = ["stream", by, "runs", "finished", *names]
        body = [
            [group["stream"], group["value"], str(group["runs"]), str(group["finished"])]
            + [show(group["scores"].get(name)) for name in names]
            for group in of_it
        ]
        title = f"{protocol}: means over the runs shown above"
        made.append(html.Div([html.H2(title), _table(head, body, text=2)]))
    return made


def _compared(runs: Sequence[Row], chosen: int, root: Path, what: str | None) -> tuple[Any, ...]:
    """The line above, the kinds of curves, the one drawn unasked, the figure, whether it is shown, the differences."""
    hidden = {"display": "none"}
    if not runs:
        return NOTHING_CHOSEN, [], "", {}, hidden, []
    folders = [root / row["id"] for row in runs]
    try:
        names = curve_names(folders)
        drawn_of = what if what in names else names[0]
        drawn = curves(folders, drawn_of)
        differing = differences(folders)
    except KinorayError as error:
        return str(error), [], "", {}, hidden, []
    first = f"The first {len(runs)} of {chosen} chosen runs" if chosen > len(runs) else f"{len(runs)} chosen"
    table = _table(["differs in", *(row["id"] for row in runs)], differing, text=len(runs) + 1)
    same = "Nothing differs but the seeds." if len(runs) > 1 else "Choose a second run to see what differs."
    below = [html.H2("Configurations"), table if differing else html.P(same)]
    return first, names, names[0], _figure(drawn, drawn_of), {}, below


def _table(head: Sequence[str], body: Sequence[Sequence[str]], text: int) -> html.Table:
    """text: how many of the first columns are words, the others are numbers."""

    def row(cells: Sequence[str], kind: Any) -> html.Tr:
        return html.Tr([kind(printable(c), className="text" if n < text else "") for n, c in enumerate(cells)])

    return html.Table([html.Thead(row(head, html.Th)), html.Tbody([row(cells, html.Td) for cells in body])])


def _figure(drawn: Sequence[Curve], what: str) -> dict[str, Any]:
    mode = "lines" if what == LOSS else "lines+markers"
    lines = [
        {"type": "scatter", "mode": mode, "name": markup.escape(printable(curve.name)), "x": curve.x, "y": curve.y,
         "line": {"color": colour, "width": 2}}
        for curve, colour in zip(drawn, COLOURS, strict=False)
    ]  # fmt: skip
    across = "optimizer step" if what == LOSS else "tasks learned"
    axis = {"gridcolor": "rgba(128,128,128,.25)", "zeroline": False, "automargin": True}
    steps = {} if what == LOSS else {"dtick": 1}
    layout = {
        "height": 360,
        "margin": {"l": 50, "r": 10, "t": 10, "b": 40},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "#808890"},
        "showlegend": True,
        "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {**axis, **steps, "title": {"text": across}},
        "yaxis": {**axis, "title": {"text": markup.escape(what)}},
        "uirevision": what,
    }
    return {"data": lines, "layout": layout}
