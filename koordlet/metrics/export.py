"""Renders Prometheus pages from the readings table, in the front.

A page of 330 containers has thousands of lines; each is kept as bytes and made anew only when the
group of values behind it came in again (hazard H10: one scrape must not cost one render of all).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from enum import Enum

from koordlet.metrics.catalog import LABELS, Family, Page, Series, families
from koordlet.metrics.readings import Entity, EntityKey, Level, ReadingsTable, Values

_GROUP_BITS = 4
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


def escape(value: str) -> str:
    """A label value by the rules of the text format."""
    return value.translate(_ESCAPES)


class _Lines:
    """One family on one page: its head, and for each entity and group the lines as bytes."""

    __slots__ = ("head", "kept", "name")

    def __init__(self, family: Family) -> None:
        self.name = family.name
        text = family.help.translate(_HELP_ESCAPES)
        kind = family.kind.value
        self.head = f"# HELP {family.name} {text}\n# TYPE {family.name} {kind}\n".encode()
        self.kept: dict[int, bytes] = {}  # by ``_line_key``


class _Part:
    """The series of one family that come from one group."""

    __slots__ = ("lines", "series")

    def __init__(self, lines: _Lines, series: tuple[Series, ...]) -> None:
        self.lines = lines
        self.series = tuple(_Source(each) for each in series)


class _Source:
    __slots__ = ("full_position", "labels", "position", "scale")

    def __init__(self, series: Series) -> None:
        self.position = series.position
        self.scale = series.scale
        self.labels = "".join(f',{name}="{escape(value)}"' for name, value in series.labels)
        self.full_position: int | None = None
        if series.full_field:
            full = Series(series.group, series.full_field)
            self.full_position = full.position


class MetricsPage:
    """One page. ``node`` is the value of Koordinator's ``node`` label; ``container_id_prefix``
    gives the runtime's scheme that its container ids begin with (``containerd://``), known once
    there is a runtime; ``process`` gives the lines about koordlet itself. Any thread may call
    ``render``.
    """

    def __init__(
        self,
        table: ReadingsTable,
        page: Page,
        *,
        node: str = "",
        container_metrics: bool = True,
        container_id_prefix: Callable[[], str] = lambda: "",
        process: Callable[[], bytes] = lambda: b"",
    ) -> None:
        self._table = table
        self._page = page
        self._node = node
        self._container_id_prefix = container_id_prefix
        self._process = process
        self._lock = threading.Lock()
        self._rendered = -1  # the table's revision that ``_body`` shows
        self._body = b""
        self._labels: dict[int, str] = {}
        self._all: list[_Lines] = []
        self._parts: dict[tuple[Level, int], list[_Part]] = {}
        for family in families():
            is_shown = container_metrics or family.level is not Level.CONTAINER
            if page in family.pages and is_shown:
                self._add(family)

    def _add(self, family: Family) -> None:
        lines = _Lines(family)
        self._all.append(lines)
        for group in dict.fromkeys(series.group for series in family.series):
            series = tuple(each for each in family.series if each.group is group)
            self._parts.setdefault((family.level, group), []).append(_Part(lines, series))

    def render(self) -> bytes:
        """The page now. Two calls with no tick between them render once."""
        with self._lock:
            if self._rendered != self._table.revision:
                self._refresh()
                self._body = b"".join(self._blocks())
            return self._body + self._process()

    def _blocks(self) -> Iterator[bytes]:
        for lines in self._all:
            if lines.kept:
                yield lines.head
                yield b"".join(lines.kept.values())

    def _refresh(self) -> None:
        seen = self._rendered
        with self._table.lock:
            entities = self._table.entities
            gone = [index for index in self._labels if index not in entities]
            for index in gone:
                self._forget(index)
            for index, entity in entities.items():
                if entity.revision > seen:
                    self._forget(index)
                    self._labels[index] = self._label_text(entity.key)
                    self._render_entity(index, entity, -1)
                else:
                    self._render_entity(index, entity, seen)
            self._rendered = self._table.revision
        if gone:
            self._shrink()

    def _shrink(self) -> None:
        """A dict keeps the size that it once had; a copy has that of what is in it."""
        self._labels = self._labels.copy()
        for lines in self._all:
            lines.kept = lines.kept.copy()

    def _forget(self, index: int) -> None:
        if self._labels.pop(index, None) is None:
            return
        for (_, group), parts in self._parts.items():
            for part in parts:
                part.lines.kept.pop(_line_key(index, group), None)

    def _render_entity(self, index: int, entity: Entity, seen: int) -> None:
        level = entity.key.level
        for group, (revision, values) in entity.groups.items():
            if revision > seen:
                key = _line_key(index, group)
                for part in self._parts.get((level, group), ()):
                    text = _render(part, self._labels[index], values)
                    if text:
                        part.lines.kept[key] = text
                    else:
                        part.lines.kept.pop(key, None)

    def _label_text(self, key: EntityKey) -> str:
        """The labels of an entity with a comma before each."""
        names = LABELS.get((self._page, key.level), ())
        pairs = [(name, self._label(key, attribute)) for name, attribute in names]
        if self._page is not Page.OURS:
            pairs.insert(0, ("node", self._node))
        return "".join(f',{name}="{escape(value)}"' for name, value in pairs)

    def _label(self, key: EntityKey, attribute: str) -> str:
        value = getattr(key, attribute)
        if isinstance(value, Enum):
            return str(value.value)
        if attribute == "container_id":
            return f"{self._container_id_prefix()}{value}"
        return "" if value is None else str(value)


def _line_key(index: int, group: int) -> int:
    """Entity and group in one number: a thousand pairs would take half a megabyte."""
    return index << _GROUP_BITS | group


def _render(part: _Part, labels: str, values: Values) -> bytes:
    name = part.lines.name
    text = ""
    for source in part.series:
        value = values[source.position]
        if value is None:
            continue
        if source.scale != 1.0:
            value = round(value * source.scale, 6)
        all_labels = (labels + source.labels + _full_label(source, values))[1:]
        text += f"{name}{{{all_labels}}} {value!r}\n" if all_labels else f"{name} {value!r}\n"
    return text.encode(errors="replace")


def _full_label(source: _Source, values: Values) -> str:
    if source.full_position is None:
        return ""
    supported = "false" if values[source.full_position] is None else "true"
    return f',cpu_full_supported="{supported}"'
