"""Cgroup paths as values: relative to the managed root, touching no disk."""

from __future__ import annotations


class CgroupPathError(ValueError):
    """A text that cannot be a cgroup path below the managed root."""


class CgroupPath(str):
    """A cgroup below the managed root, e.g. ``kubepods/besteffort/pod1``; the root is ``""``.

    A string subclass, since a tick looks thousands of them up in dictionaries.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> CgroupPath:
        """Validate ``text``; a leading and trailing ``/`` is dropped.

        Raises CgroupPathError for ``.``/``..`` or empty components, NUL or newline characters.
        """
        trimmed = text.strip("/")
        if not trimmed:
            return ROOT
        if any(part in ("", ".", "..") for part in trimmed.split("/")):
            raise CgroupPathError(
                f"cgroup path {text!r}: empty, '.' and '..' components are refused"
            )
        if "\0" in trimmed or "\n" in trimmed:
            raise CgroupPathError(f"cgroup path {text!r}: control characters are refused")
        return cls(trimmed)

    @property
    def parent(self) -> CgroupPath:
        """The directory above; the root is its own parent."""
        return CgroupPath(self.rpartition("/")[0])

    @property
    def name(self) -> str:
        """The last component."""
        return self.rpartition("/")[2]

    @property
    def depth(self) -> int:
        """Number of components; 0 for the root."""
        return self.count("/") + 1 if self else 0

    def child(self, name: str) -> CgroupPath:
        """The path of a directory ``name`` directly below."""
        return CgroupPath(f"{self}/{name}") if self else CgroupPath(name)

    def is_below(self, other: str) -> bool:
        """True when this path lies strictly below ``other``."""
        return len(self) > len(other) and (not other or self.startswith(other + "/"))

    def is_at_or_below(self, other: str) -> bool:
        """True when this path is ``other`` or lies below it."""
        return self == other or self.is_below(other)


ROOT = CgroupPath("")
