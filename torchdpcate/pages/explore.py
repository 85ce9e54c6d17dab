"""The page itself, by NiceGUI: sliders, an answer, a curve, answers to a table, and the privacy statement."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nicegui import events, ui

from torchdpcate.data.stream import stream_answers
from torchdpcate.errors import InputError, TorchDPCateError
from torchdpcate.pages.loopback import OwnOrigin
from torchdpcate.pages.questions import LEVEL, Curve, Question, answer, curve, questions
from torchdpcate.release.file import Release, subject
from torchdpcate.verify.finding import findings

MOST_BYTES = 64 * 2**20
"""The largest table that the page takes; ``torchdpcate predict`` takes any."""


class Explorer:
    """One reader's page: what was requested, and what is shown of it.

    Args:
        release: A release that answers covariates.
        signed: Who signed it, in words.
    """

    def __init__(self, release: Release, signed: str) -> None:
        self.release, self.signed = release, signed
        self.requested = questions(release)
        self.values: dict[str, Any] = {question.name: question.start for question in self.requested}
        self.varied = next((question for question in self.requested if not question.levels), self.requested[0])

    def build(self) -> None:
        """Lay the page out."""
        ui.query("body").classes("bg-slate-50")
        with ui.column().classes("w-full max-w-6xl mx-auto p-2 gap-4"):
            ui.label(subject(self.release)).classes("text-xl font-medium")
            for words in findings(self.release):
                ui.label(words).classes("text-sm")
            ui.label(self.release.privacy.claim).classes("text-sm text-slate-600")
            with ui.row().classes("w-full gap-4 items-start"):
                with ui.card().classes("w-full md:w-80"):
                    for question in self.requested:
                        self._ask(question)
                with ui.column().classes("w-full md:flex-1 gap-4"):
                    self._shown()
                    self._table()
            with ui.expansion("Privacy statement").classes("w-full bg-white"):
                ui.label(self.signed).classes("text-sm")
                ui.markdown(self.release.privacy.to_markdown())
        self.refresh()

    def refresh(self) -> None:
        """Show the answer for what is requested now."""
        try:
            found = answer(self.release, self.values)
            drawn = curve(self.release, self.values, self.varied)
        except InputError as error:
            self.headline.set_text("no answer")
            self.interval.set_text(str(error))
            return
        self.headline.set_text(found.headline)
        self.interval.set_text(found.interval)
        self.chart.options.clear()
        self.chart.options.update(_options(drawn, self.varied, self.release.column))
        self.chart.update()

    def _ask(self, question: Question) -> None:
        if question.levels:
            options = {level: str(level) for level in question.levels}
            ui.select(options, value=question.start, label=question.label, on_change=self._moved(question)).classes(
                "w-full"
            )
            return
        with ui.row().classes("w-full justify-between"):
            ui.label(question.label).classes("text-sm")
            shown = ui.label(f"{question.start:g}").classes("text-sm font-mono")
        slider = ui.slider(
            min=question.low,
            max=question.high,
            step=question.step,
            value=question.start,
            on_change=self._moved(question, shown),
        ).props(f'aria-label="{_attribute(question.name)}"')
        if question.missing is not None:
            ui.checkbox("not known", on_change=self._unknown(question, slider))

    def _unknown(self, question: Question, slider: ui.slider) -> Any:
        def handle(event: events.ValueChangeEventArguments) -> None:
            self.values[question.name] = None if event.value else slider.value
            self.refresh()

        return handle

    def _moved(self, question: Question, shown: ui.label | None = None) -> Any:
        def handle(event: events.ValueChangeEventArguments) -> None:
            self.values[question.name] = event.value
            if shown is not None:
                shown.set_text(f"{event.value:g}")
            self.refresh()

        return handle

    def _shown(self) -> None:
        with ui.card().classes("w-full"):
            self.headline = ui.label().classes("text-2xl font-medium").mark("headline")
            self.interval = ui.label().classes("text-sm text-slate-600").mark("interval")
            options = {question.name: question.name for question in self.requested}
            ui.select(options, value=self.varied.name, label="against", on_change=self._vary).classes("w-48")
            self.chart = ui.echart({}).classes("w-full h-72")

    def _vary(self, event: events.ValueChangeEventArguments) -> None:
        self.varied = next(question for question in self.requested if question.name == event.value)
        self.refresh()

    def _table(self) -> None:
        with ui.card().classes("w-full"):
            ui.label("Answers to a table").classes("font-medium")
            names = ", ".join(question.name for question in self.requested)
            ui.label(f"A csv file with columns {names}. It stays on this machine.").classes("text-sm text-slate-600")
            ui.upload(on_upload=self._answer_table, max_file_size=MOST_BYTES, auto_upload=True).props(
                "accept=.csv flat bordered"
            ).classes("w-full")

    async def _answer_table(self, event: events.UploadEventArguments) -> None:
        with tempfile.TemporaryDirectory() as folder:
            given, found = Path(folder) / "queries.csv", Path(folder) / "answers.csv"
            await event.file.save(given)
            try:
                release = self.release
                rows = stream_answers(
                    given, found, release.schema, lambda x: release.as_columns(release.answer(x))
                ).rows
            except TorchDPCateError as error:
                ui.notify(str(error).replace(str(given), event.file.name), type="negative", multi_line=True)
                return
            ui.download.content(found.read_bytes(), "answers.csv")
            ui.notify(f"{rows:,} rows answered", type="positive")


def serve(release: Release, signed: str, port: int, show: bool) -> None:
    """Serve the page to this machine until the process is ended.

    Args:
        release: A release that answers covariates.
        signed: Who signed it, in words.
        port: Port on the loopback interface.
        show: Whether to open a browser.
    """
    from nicegui import app

    app.add_middleware(OwnOrigin, port=port)

    @ui.page("/")
    def page() -> None:
        Explorer(release, signed).build()

    ui.run(host="127.0.0.1", port=port, show=show, reload=False, title="torchdpcate", show_welcome_message=False)


def _options(drawn: Curve, question: Question, column: str) -> Mapping[str, Any]:
    """Return the chart of a curve: lines for a number, points for categories, intervals as a band or as whiskers."""
    text = bool(question.levels)
    x: dict[str, Any] = {"type": "value", "min": min(drawn.points), "max": max(drawn.points)}
    if text:
        x = {"type": "category", "data": [str(point) for point in drawn.points]}

    def drawn_as(values: Sequence[float], **style: Any) -> dict[str, Any]:
        data = list(values) if text else list(zip(drawn.points, values, strict=True))
        return {"type": "scatter" if text else "line", "showSymbol": text, "data": data, **style}

    whiskers = {"symbolSize": 5, "lineStyle": {"type": "dashed", "width": 1}, "itemStyle": {"color": "#94a3b8"}}
    ends = [drawn_as(end, **whiskers) for end in zip(*drawn.ends, strict=True)]
    return {
        "grid": {"left": 60, "right": 20, "top": 30, "bottom": 45},
        "tooltip": {"trigger": "axis"},
        "xAxis": {**x, "name": question.label, "nameLocation": "middle", "nameGap": 28},
        "yAxis": {"type": "value", "name": column + (f", {LEVEL:.0%} interval dashed" if drawn.ends else "")},
        **({"legend": {"top": 0}} if drawn.arms else {}),
        "series": [drawn_as(values, name=arm) for arm, values in drawn.arms.items()] or [drawn_as(drawn.values), *ends],
        "animation": False,
    }


def _attribute(name: str) -> str:
    return name.replace("\\", "").replace('"', "").replace("'", "")
