"""Every newest reading, by what it is about."""

from __future__ import annotations

from typing import TypedDict

from koordlet.api.views.common import Unknown, number
from koordlet.api.views.ranges import RangeData, range_data
from koordlet.history.query import RangeAnswer, RangeQuery
from koordlet.metrics.readings import EntityKey, Level
from koordlet.report import NodeView


class ReadingData(TypedDict):
    """The values of one thing, by name with the unit in it; what is not known is left out.

    ``name`` is that of a tier, host application, disk or interface; ``uid`` is metadata.uid.
    """

    level: str
    name: str
    namespace: str
    pod: str
    uid: str
    container: str
    container_id: str
    qos: str | None
    values: dict[str, float | Unknown]


class MetricsData(TypedDict):
    """All newest readings, the node's first; or a range of the history, and then no readings."""

    readings: list[ReadingData]
    range: RangeData | None


def metrics_data(view: NodeView) -> MetricsData:
    """All readings by level, in the order in which their things appeared."""
    return {
        "readings": [
            reading_data(key, values) for level in Level for key, values in view.readings.at(level)
        ],
        "range": None,
    }


def history_data(answer: RangeAnswer, query: RangeQuery) -> MetricsData:
    """What ``query`` found."""
    return {"readings": [], "range": range_data(answer, query.percentiles)}


def reading_data(key: EntityKey, values: dict[str, float]) -> ReadingData:
    """The JSON form of one reading."""
    return {
        "level": key.level.value,
        "name": key.name,
        "namespace": key.namespace,
        "pod": key.pod,
        "uid": key.uid,
        "container": key.container,
        "container_id": key.container_id,
        "qos": key.qos.value if key.qos else None,
        "values": {name: number(value) for name, value in values.items()},
    }
