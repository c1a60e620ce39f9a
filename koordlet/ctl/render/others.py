"""Audit, doctor, NodeSLO, modes and undo for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from koordlet.ctl.render.status import sources, strategies
from koordlet.ctl.render.tables import problems, section, show, table, word
from koordlet.ctl.text import clean, clean_lines, missing_why, moment

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Data = Mapping[str, Any]
ROW_COLUMNS = 140
"""From this width on an event fits in one row."""


def draw_audit(data: Data, console: Console) -> None:
    """Events, the newest last."""
    show(console, (audit_body(data["events"], console.width),))
    if data["limit_reached"]:
        show(console, (f"the newest {data['limit']}; there may be more: --limit, --since",))


def audit_body(events: list[Data], columns: int) -> RenderableType:
    """A row an event where there is room for one, else a few lines."""
    if not events:
        return "no events"
    return audit_table(events) if columns >= ROW_COLUMNS else audit_lines(events)


def audit_table(events: list[Data]) -> RenderableType:
    """Events as rows."""
    made = table("at", "kind", "owner", "where", "from", "to", "why", whole=("at",))
    for event in events:
        made.add_row(
            moment(event["at"]),
            clean(event["kind"]),
            clean(event["owner"]),
            _where(event),
            clean(event["before"]),
            clean(event["after"]),
            _why(event),
        )
    return made


def audit_lines(events: list[Data]) -> RenderableType:
    """Events as a line of what happened, then where and why."""
    made = table("at", "event", whole=("at",))
    for event in events:
        change = f": {event['before']} -> {event['after']}" if event["after"] else ""
        first = clean(f"{event['kind']} {event['owner']}{change}")
        further = [text for text in (_where(event), _why(event)) if text]
        made.add_row(moment(event["at"]), "\n".join((first, *further)))
    return made


def _where(event: Data) -> str:
    return clean(event["file"] or f"{event['cgroup']} {event['knob']}".strip())


def _why(event: Data) -> str:
    """The reason; the outcome before it where it is not what was meant."""
    meant = event["outcome"] in ("", "applied", "restored")
    return clean(event["reason"] if meant else f"{event['outcome']}: {event['reason']}")


def draw_doctor(data: Data, console: Console) -> None:
    """What works, what does not, and the remedy."""
    show(console, _doctor_parts(data))


def _doctor_parts(data: Data) -> Iterable[RenderableType]:
    versions = data["cgroup_versions"]
    why = missing_why(versions)
    if why is not None:
        yield f"nothing was probed: {clean(why)}"
    else:
        named = ", ".join(f"{clean(name)} v{number}" for name, number in versions.items())
        yield f"koordlet {clean(data['version'])}; cgroup controllers: {named or 'none'}"
        yield from ("", capabilities_table(data["capabilities"]))
    yield from section("Sources", sources(data["sources"]))
    yield from section("Limits", problems(data["warnings"]))
    yield ""
    missing = data["missing_needed"]
    if missing:
        yield f"MISSING, and the NodeSLO in force needs it: {clean(', '.join(missing))}"
    elif why is None:
        yield "everything that the NodeSLO in force needs is there"


def capabilities_table(capabilities: list[Data]) -> RenderableType:
    """One row a capability."""
    made = table("capability", "works", "proof", "needed by", "why and remedy")
    for entry in capabilities:
        told = [entry["why"] or entry["detail"], entry["remedy"] and f"remedy: {entry['remedy']}"]
        made.add_row(
            clean(entry["name"]),
            "yes" if entry["works"] else word("NO" if entry["needed_by"] else "no"),
            clean(entry["proof"]),
            clean(", ".join(entry["needed_by"])),
            clean("; ".join(text for text in told if text)),
        )
    return made


def draw_slo(data: Data, console: Console) -> None:
    """The NodeSLO in force as a document."""
    why = missing_why(data["document"])
    if why is not None:
        show(console, (f"no NodeSLO is known: {clean(why)}",))
    else:
        show(console, (f"# {clean(data['where'])}, loaded at {clean(data['loaded_at'])}",))
        _document(data["document"], console)
    show(console, (problems(data["refused"]), problems(data["warnings"])))


def draw_slo_check(data: Data, console: Console) -> None:
    """The verdict on a file."""
    show(console, (f"{clean(data['where'])}: {clean(data['verdict'])}",))
    show(console, (problems(data["refused"]), problems(data["warnings"])))
    if data["changed"]:
        show(console, (f"differs from the defaults in: {clean(', '.join(data['changed']))}",))


def draw_slo_defaults(data: Data, console: Console) -> None:
    """The defaults as a document that could be put in force."""
    _document(data["document"], console)


def _document(document: Data, console: Console) -> None:
    import yaml

    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    console.print(clean_lines(text).rstrip("\n"), soft_wrap=True)


def draw_modes(data: Data, console: Console) -> None:
    """What strategies may do now."""
    if data["changed"]:
        show(console, (clean(data["changed"]),))
    show(console, (strategies(data["strategies"]) or "no strategy is known yet",))
    if data["released"]:
        show(console, (f"released: {clean(', '.join(data['released']))}",))


def draw_undo(data: Data, console: Console) -> None:
    """What a release or rollback did to each file."""
    if data["files"]:
        made = table("file", "outcome", "from", "to", "why")
        for entry in data["files"]:
            where = entry["file"]
            if missing_why(where) is not None:
                where = f"{entry['cgroup']} {entry['knob']}"
            made.add_row(
                clean(where),
                word(entry["outcome"]),
                clean(entry["before"]),
                clean(entry["after"]),
                clean(entry["why"]),
            )
        show(console, (made,))
    show(console, (undo_summary(data),))


def undo_summary(data: Data) -> str:
    """The whole in one line."""
    if data["done_by"] == "nobody":
        return clean(data["note"]) or "nothing to undo"
    if data["dry_run"]:
        text = f"{len(data['files'])} files would be restored"
    else:
        counts = [("restored", data["restored"]), ("gone", data["gone"])]
        counts += [("left as they are", data["left"])]
        counts += [("failed", data["failed"]), ("pending", data["pending"])]
        text = ", ".join(f"{count} {name}" for name, count in counts if count or name == "restored")
    note = f"; {clean(data['note'])}" if data["note"] else ""
    return f"{text} (by {clean(data['done_by'])}){note}"
