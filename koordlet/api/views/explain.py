"""One pod, container, host application, cgroup, strategy or kernel file: everything behind it."""

from __future__ import annotations

import difflib
from typing import Literal, TypedDict

from koordlet.api.views.picture import Picture, picture
from koordlet.api.views.pods import AppData, PodData, QosData, app_data, pod_data
from koordlet.api.views.settings import SettingData, owner_of, settings_data, strategies
from koordlet.api.views.strategies import StrategyData, strategy_data
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import HostApp, Pod
from koordlet.model.readings import Missing
from koordlet.protocol.problem import Problem
from koordlet.report import NodeView

PREFIX_MIN_CHARS = 4
CANDIDATES_SHOWN = 5

Kind = Literal["pod", "host-application", "cgroup", "strategy", "file"]


class SubjectData(TypedDict):
    """One thing that the target named.

    ``settings`` are the files at or below it, ``above`` those of the directories around it that
    bind it too (the tier's budget, for a BE pod). ``sentence`` tells a pod's QoS decision.
    """

    kind: Kind
    name: str
    sentence: str
    pod: PodData | None
    host_application: AppData | None
    strategy: StrategyData | None
    settings: list[SettingData]
    above: list[SettingData]


class ExplainData(TypedDict):
    """All that ``target`` named: several where pods share a name."""

    target: str
    subjects: list[SubjectData]


class NoSuchTargetError(Exception):
    """The target names nothing, or several things."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def explain_data(view: NodeView, target: str) -> ExplainData:
    """Everything behind ``target``; raises NoSuchTargetError with what could have been meant.

    A target is ``namespace/name`` or an unambiguous pod name, a prefix of a pod UID or container
    id (at least 4 characters), a host application's name, a cgroup below the managed root, a
    strategy's name, or a kernel file.
    """
    whole = picture(view)
    wanted = target.strip()
    if wanted.startswith("/"):
        return {"target": target, "subjects": [_path_subject(whole, wanted)]}
    subjects = [_pod_subject(whole, pod) for pod in find_pods(whole.pods, wanted)]
    subjects += [_app_subject(whole, app) for app in whole.apps if app.name == wanted]
    subjects += _strategy_subjects(whole, wanted)
    if not subjects:
        subjects = _cgroup_subjects(whole, wanted)
    if not subjects:
        raise _nothing(whole, target)
    return {"target": target, "subjects": subjects}


def find_pods(pods: tuple[Pod, ...], wanted: str) -> tuple[Pod, ...]:
    """Pods that ``wanted`` names; raises NoSuchTargetError where a short form names several."""
    exact = tuple(p for p in pods if wanted in (p.full_name, p.uid, p.record.api_uid))
    if exact:
        return exact
    container_id = wanted.rpartition("://")[2]
    short = tuple(pod for pod in pods if _names_short(pod, container_id))
    if len(short) > 1:
        raise NoSuchTargetError(
            Problem(
                "target-ambiguous",
                wanted,
                f"names {len(short)} pods",
                limit="one pod",
                remedy="use one of: " + ", ".join(_full_names(short)),
            )
        )
    return short


def _names_short(pod: Pod, wanted: str) -> bool:
    if wanted == pod.record.name:
        return True
    if len(wanted) < PREFIX_MIN_CHARS:
        return False
    ids = (pod.uid, pod.record.api_uid, *pod.record.sandbox_ids, *(c.id for c in pod.containers))
    return any(identity.startswith(wanted) for identity in ids)


def _full_names(pods: tuple[Pod, ...]) -> list[str]:
    shown = [f"{pod.full_name} ({pod.uid})" for pod in pods[:CANDIDATES_SHOWN]]
    return shown + (["..."] if len(pods) > CANDIDATES_SHOWN else [])


def _path_subject(whole: Picture, path: str) -> SubjectData:
    """A kernel file, or a cgroup directory with all files in it."""
    plain = path.rstrip("/")
    hits = {}
    for key, setting in whole.settings.items():
        file = whole.view.paths.get(key, "")
        if plain in (file, file.rpartition("/")[0]):
            hits[key] = setting
    if not hits:
        raise NoSuchTargetError(
            Problem(
                "file-not-managed",
                path,
                "koordlet neither writes, holds nor restores this file",
                limit="files that a strategy owns or would write",
                remedy="koordletctl plan lists them",
            )
        )
    sentence = _whose(whole, next(iter(hits))[0])
    return _subject("file", path, settings_data(whole.view, hits), sentence=sentence)


def _whose(whole: Picture, cgroup: CgroupPath) -> str:
    """Which workload a directory belongs to, the innermost first."""
    workloads = [(pod.cgroup, f"pod {pod.full_name}") for pod in whole.pods]
    workloads += [(app.cgroup, f"host application {app.name}") for app in whole.apps]
    around = [
        (path.depth, name)
        for path, name in workloads
        if not isinstance(path, Missing) and cgroup.is_at_or_below(path)
    ]
    if around:
        return f"belongs to {max(around)[1]}"
    roots = [root for root in whole.be_roots if cgroup.is_at_or_below(root.path)]
    return f"belongs to BE root {roots[0].path} ({roots[0].claimed_by})" if roots else ""


def _pod_subject(whole: Picture, pod: Pod) -> SubjectData:
    data = pod_data(whole, pod)
    subject = _subject("pod", pod.full_name, *_around(whole, pod.cgroup))
    return {**subject, "pod": data, "sentence": qos_sentence(data["qos"])}


def _app_subject(whole: Picture, app: HostApp) -> SubjectData:
    subject = _subject("host-application", app.name, *_around(whole, app.cgroup))
    sentence = f"QoS {app.qos.value}, declared in {app.declared_in or 'an unnamed place'}"
    return {**subject, "host_application": app_data(whole, app), "sentence": sentence}


def _strategy_subjects(whole: Picture, wanted: str) -> list[SubjectData]:
    found: list[SubjectData] = []
    for strategy in strategies(whole.view):
        if strategy.name == wanted:
            mine = {key: part for key, part in whole.settings.items() if owner_of(part) == wanted}
            subject = _subject("strategy", wanted, settings_data(whole.view, mine))
            found.append({**subject, "strategy": strategy_data(strategy)})
    return found


def _cgroup_subjects(whole: Picture, wanted: str) -> list[SubjectData]:
    cgroup = wanted.strip("/")
    here = {key: part for key, part in whole.settings.items() if key[0] == cgroup}
    if not here:
        return []
    sentence = _whose(whole, next(iter(here))[0])
    return [_subject("cgroup", wanted, settings_data(whole.view, here), sentence=sentence)]


def _around(
    whole: Picture, cgroup: CgroupPath | Missing
) -> tuple[list[SettingData], list[SettingData]]:
    """Settings at or below ``cgroup``, and those of the directories above it."""
    return (
        settings_data(whole.view, whole.at_or_below(cgroup)),
        settings_data(whole.view, whole.above(cgroup)),
    )


def _subject(
    kind: Kind,
    name: str,
    settings: list[SettingData],
    above: list[SettingData] | None = None,
    sentence: str = "",
) -> SubjectData:
    return {
        "kind": kind,
        "name": name,
        "sentence": sentence,
        "pod": None,
        "host_application": None,
        "strategy": None,
        "settings": settings,
        "above": above or [],
    }


def qos_sentence(qos: QosData) -> str:
    """How the effective QoS came about, as one sentence."""
    sentence = f"QoS {qos['effective']} from {qos['source']}"
    if qos["refused"]:
        sentence += f" ({qos['refused']})"
    elif qos["claim"] is not None and not qos["marked"]:
        sentence += f" (the label says {qos['claim']!r}, which is no QoS class)"
    elif not qos["marked"]:
        sentence += ", not marked: only governed together with marked work in its tier"
    return sentence


def _nothing(whole: Picture, target: str) -> NoSuchTargetError:
    names = [pod.full_name for pod in whole.pods] + [app.name for app in whole.apps]
    close = difflib.get_close_matches(target, names, n=CANDIDATES_SHOWN, cutoff=0.5)
    remedy = "koordletctl pods lists pods and host applications"
    if close:
        remedy = f"did you mean {', '.join(close)}? {remedy}"
    return NoSuchTargetError(
        Problem(
            "target-unknown",
            target,
            "no pod, container, host application, cgroup, strategy or file of that name",
            limit=f"id prefixes need at least {PREFIX_MIN_CHARS} characters",
            remedy=remedy,
        )
    )
