"""Where collectors put what they measured; it knows what the front has been told already."""

from __future__ import annotations

from koordlet.metrics.readings import EntityKey, Readings, Scope, Values


class Sink:
    """Entities, their newest values, and what of that is new since the last ``drain``."""

    def __init__(self) -> None:
        self._next_index = 0
        self._keys: dict[int, EntityKey] = {}
        self._newest: dict[int, dict[int, Values]] = {}
        self._new_keys: dict[int, EntityKey] = {}
        self._changed: dict[tuple[int, int], Values] = {}
        self._gone: list[int] = []

    def enter(self, key: EntityKey) -> int:
        """A new entity; its index is never used again."""
        index = self._next_index
        self._next_index += 1
        self._newest[index] = {}
        self.rekey(index, key)
        return index

    def rekey(self, index: int, key: EntityKey) -> None:
        """The labels of an entity, where they changed."""
        if self._keys.get(index) != key:
            self._keys[index] = self._new_keys[index] = key

    def put(self, index: int, group: int, values: Values) -> None:
        """The newest values of one group. An int, since an enum's hash runs in Python."""
        newest = self._newest[index]
        if newest.get(group) != values:
            newest[group] = values
            self._changed[index, group] = values

    def void(self, index: int) -> None:
        """No value of the entity is known any more."""
        for group, values in list(self._newest[index].items()):
            self.put(index, group, (None,) * len(values))

    def leave(self, index: int) -> None:
        """The entity is no more; everything about it is forgotten (case OPS-03)."""
        del self._keys[index]
        for group in self._newest.pop(index):
            self._changed.pop((index, group), None)
        self._new_keys.pop(index, None)
        self._gone.append(index)

    def drain(self, tick: int) -> Readings:
        """What is new since the last call."""
        readings = Readings(
            tick,
            Scope.DELTA,
            tuple(self._new_keys.items()),
            tuple((index, group, values) for (index, group), values in self._changed.items()),
            tuple(self._gone),
        )
        if self._gone:  # else they keep the size that they once had
            self._keys, self._newest = self._keys.copy(), self._newest.copy()
        self._start_afresh()
        return readings

    def whole(self, tick: int) -> Readings:
        """Everything, for a front that knows nothing; the next ``drain`` continues from here."""
        self._start_afresh()
        return Readings(
            tick,
            Scope.WHOLE,
            tuple(self._keys.items()),
            tuple(
                (index, group, values)
                for index, groups in self._newest.items()
                for group, values in groups.items()
            ),
        )

    def _start_afresh(self) -> None:
        self._new_keys = {}
        self._changed = {}
        self._gone = []
