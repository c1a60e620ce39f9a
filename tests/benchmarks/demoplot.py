"""The demo's figures as one page with charts in it; it needs no network and runs no script."""

from __future__ import annotations

import html
import sys
from collections.abc import Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import pygal
from pygal.style import Style

from tests.benchmarks.common import quantile
from tests.benchmarks.demofigures import DAY, Arm, Figures, Slice, demand_cores

# pygal leaves an outdated finder behind, and every failed import then warns of it.
sys.meta_path[:] = [each for each in sys.meta_path if not isinstance(each, pygal.PluginImportFixer)]

BINS = 5  # of each slice: a point of the day's line
_COLOURS = ("#4c9f70", "#d1495b", "#edae49", "#30638e")  # in the order of Arm
_PAGE = """<!doctype html>
<meta charset="utf-8">
<title>koordlet: the effect</title>
<style>
body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; color: #222 }}
figure {{ margin: 0 0 2rem }}
</style>
<h1>A service and batch work on one machine</h1>
<p>{summary}</p>
{charts}
"""


def write(path: Path, figures: Figures, slices: Sequence[Slice]) -> None:
    """Write the page."""
    charts = (_day(slices), _p99(figures), _batch(figures), _utilization(figures))
    for chart in charts:
        chart.add_xml_filter(_without_script)
    inline = (chart.render(is_unicode=True) for chart in charts)
    figures_html = "\n".join(f"<figure>{svg}</figure>" for svg in inline)
    page = _PAGE.format(summary=html.escape(_summary(figures)), charts=figures_html)
    path.write_text(page, encoding="utf-8")


def _without_script(root: Element) -> Element:
    """Tooltips need one, from the network; the charts do without."""
    for parent in root.iter():
        for child in [child for child in parent if str(child.tag).endswith("script")]:
            parent.remove(child)
    return root


def _summary(figures: Figures) -> str:
    return (
        f"p99 latency beside batch work, as a multiple of the service alone:"
        f" {figures['ls_p99_ratio_unmanaged']:.2f} unmanaged,"
        f" {figures['ls_p99_ratio_k8s_default']:.2f} with the Kubernetes default,"
        f" {figures['ls_p99_ratio_managed']:.2f} with koordlet, which kept"
        f" {figures['batch_kept_ratio']:.0%} of the unmanaged batch work."
    )


def _day(slices: Sequence[Slice]) -> pygal.XY:
    """p99 over the day by arm, and the service's demand on the second axis."""
    chart = pygal.XY(
        title="p99 latency over the day, ms (and the service's demand, cores, right)",
        x_labels=[24 * phase.begins for phase in DAY] + [24 * DAY[-1].ends],
        x_value_formatter=lambda hour: f"{round(hour) % 24:02d}:00",
        **_look((*_COLOURS, "#999999")),
    )
    for arm in Arm:
        chart.add(arm, _points([one for one in slices if one.arm is arm]))
    begins, ends = DAY[0].begins, DAY[-1].ends
    days = [begins + (ends - begins) * step / 48 for step in range(49)]
    demand = [(24 * day, demand_cores(day)) for day in days]
    chart.add("demand, cores", demand, secondary=True, show_dots=False)
    return chart


def _points(slices: Sequence[Slice]) -> list[tuple[float, float]]:
    points = []
    for one in sorted(slices, key=lambda each: each.phase.begins):
        length = one.phase.ends - one.phase.begins
        for number in range(BINS):
            part = one.played.between(one.wall_s * number / BINS, one.wall_s * (number + 1) / BINS)
            if latencies_s := part.latencies_s():
                middle = one.phase.begins + length * (number + 0.5) / BINS
                points.append((24 * middle, 1000 * quantile(latencies_s, 0.99)))
    return points


def _p99(figures: Figures) -> pygal.Bar:
    return _bars(figures, "p99 latency by phase, ms", "p99_ms", tuple(Arm))


def _batch(figures: Figures) -> pygal.Bar:
    return _bars(figures, "batch work by phase, units/s", "units_per_s", tuple(Arm)[1:])


def _utilization(figures: Figures) -> pygal.Bar:
    return _bars(figures, "CPU used by both, share of all cores", "cpu_utilization", tuple(Arm))


def _bars(figures: Figures, title: str, key: str, arms: tuple[Arm, ...]) -> pygal.Bar:
    colours = _COLOURS[len(_COLOURS) - len(arms) :]
    chart = pygal.Bar(title=title, x_labels=[phase.name for phase in DAY], **_look(colours))
    for arm in arms:
        phases = figures["arms"][arm]["phases"]
        chart.add(arm, [phases[phase.name][key] for phase in DAY if phase.name in phases])
    return chart


def _look(colours: tuple[str, ...]) -> dict[str, object]:
    style = Style(colors=colours, background="white", plot_background="white")
    return {
        "style": style,
        "js": (),
        "width": 900,
        "height": 340,
        "disable_xml_declaration": True,
        "explicit_size": True,
    }
