"""A realistic NodeView to ask questions of: a small v1 host in the middle of its work."""

from __future__ import annotations

from dataclasses import replace

from koordlet.history.query import Line, RangeAnswer, RangeQuery, Stat
from koordlet.history.rollup import Subject
from koordlet.metrics.readings import FIELDS, EntityKey, Group, Level, Readings, ReadingsTable
from koordlet.model.actions import (
    Conflict,
    Hold,
    Mode,
    Outcome,
    Owned,
    Plan,
    SetValue,
    Status,
    Struck,
    Target,
)
from koordlet.model.capabilities import Capabilities, Capability, Proof
from koordlet.model.knobs import Channel, Knob
from koordlet.model.paths import CgroupPath
from koordlet.model.pods import (
    AppBackend,
    BeRoot,
    CgroupDriver,
    Container,
    ContainerRecord,
    ContainerState,
    HostApp,
    KubeLayout,
    Pod,
    PodRecord,
    Resources,
    Workloads,
)
from koordlet.model.readings import Missing
from koordlet.model.topology import Cpu, CpuManagerPolicy, NodeFacts, Topology
from koordlet.protocol.names import LABEL_QOS
from koordlet.protocol.nodeslo import DEFAULT_NODESLO, CpuSuppressPolicy
from koordlet.protocol.problem import Problem, Severity
from koordlet.protocol.qos import KubeQos, PriorityClass, Qos, QosSource, ValueSource
from koordlet.report import (
    CoreStatus,
    NodeView,
    SloStatus,
    SourceState,
    SourceStatus,
    StrategyStatus,
    TickCause,
    TickStats,
)
from koordlet.resexecutor.audit import AuditEvent

WALL_S = 1_767_225_600.0  # 2026-01-01 00:00:00 UTC
NOW_S = 5_000.0
BE_TIER = CgroupPath("kubepods/besteffort")
WEB = CgroupPath("kubepods/burstable/pod11111111-aaaa-bbbb-cccc-000000000001")
BATCH = CgroupPath("kubepods/besteffort/pod22222222-aaaa-bbbb-cccc-000000000002")
LIAR = CgroupPath("kubepods/burstable/pod33333333-aaaa-bbbb-cccc-000000000003")
ENCODER = CgroupPath("host-best-effort/encoder")
TIER_QUOTA: Target = (BE_TIER, Knob.CPU_QUOTA)
TIER_SHARES: Target = (BE_TIER, Knob.CPU_SHARES)
BATCH_IDLE: Target = (BATCH, Knob.CPU_IDLE)
BATCH_SHARES: Target = (BATCH, Knob.CPU_SHARES)
ENCODER_QUOTA: Target = (ENCODER, Knob.CPU_QUOTA)
CONTAINER_QUOTA: Target = (BATCH.child("c" * 64), Knob.CPU_QUOTA)
HELD: Target = (ENCODER, Knob.CPU_SHARES)
BUDGET_TERMS = (
    ("capacity_cores", 4.0),
    ("threshold_percent", 65),
    ("nonbe_pods_cores", 0.9),
    ("nonbe_apps_cores", 0.0),
    ("system_cores", 0.2),
    ("reserved_cores", 0.5),
    ("use_window_s", 1.0),
    ("min_cores", 0.0),
    ("budget_cores", 1.2),
    ("be_roots", 2),
    ("floor_bound", 0),
)


def file_path(target: Target) -> str:
    """The v1 file of a target of this host."""
    names = {
        Knob.CPU_QUOTA: "cpu.cfs_quota_us",
        Knob.CPU_SHARES: "cpu.shares",
        Knob.CPU_IDLE: "cpu.idle",
        Knob.CPUSET_CPUS: "cpuset.cpus",
    }
    controller = "cpuset" if target[1] is Knob.CPUSET_CPUS else "cpu"
    return f"/sys/fs/cgroup/{controller}/{target[0]}/{names[target[1]]}"


def pod(
    cgroup: CgroupPath,
    name: str,
    qos: Qos,
    kube_qos: KubeQos,
    *,
    claim: str | None = None,
    refused: str = "",
    container_id: str = "",
) -> Pod:
    """A pod with one container below ``cgroup``; ``claim`` is the text of its QoS label."""
    identity = container_id or name[0] * 64
    record = PodRecord(
        uid=cgroup.name.removeprefix("pod"),
        api_uid=cgroup.name.removeprefix("pod"),
        namespace="default",
        name=name,
        labels={} if claim is None else {LABEL_QOS: claim},
        sandbox_ids=("5" * 64,),
        containers=(
            ContainerRecord(
                id=identity,
                name="main",
                attempt=0,
                state=ContainerState.RUNNING,
                requests=Resources(500, 256 << 20),
                limits=Resources(None, 512 << 20),
                resources_source=ValueSource.CONTAINER_STATUS,
            ),
        ),
        requests=Resources(500, 256 << 20),
        limits=Resources(None, 512 << 20),
        resources_source=ValueSource.CONTAINER_STATUS,
        kube_qos=kube_qos,
    )
    return Pod(
        record=record,
        cgroup=cgroup,
        kube_qos=kube_qos,
        qos=qos,
        qos_source=QosSource.REFUSED
        if refused
        else QosSource.LABEL
        if claim
        else QosSource.KUBE_DEFAULT,
        marked=claim is not None and not refused,
        refused=refused,
        priority=None,
        priority_class=PriorityClass.BATCH if qos is Qos.BE else PriorityClass.PROD,
        priority_source=ValueSource.DERIVED,
        containers=(Container(record.containers[0], cgroup.child(identity)),),
    )


def workloads() -> Workloads:
    """One LS pod, one BE pod, a pod whose claim was refused, and a BE host application."""
    return Workloads(
        pods=(
            pod(WEB, "web-1", Qos.LS, KubeQos.BURSTABLE, claim="LS", container_id="a" * 64),
            pod(BATCH, "batch-1", Qos.BE, KubeQos.BEST_EFFORT, claim="BE", container_id="c" * 64),
            pod(
                LIAR,
                "liar-1",
                Qos.LS,
                KubeQos.BURSTABLE,
                claim="LSR",
                refused="LSR (from label) refused: the pod's kube QoS is Burstable, LSR needs"
                " Guaranteed; LS is in force",
                container_id="e" * 64,
            ),
        ),
        pods_age_s=0.4,
        apps=(
            HostApp(
                name="encoder",
                qos=Qos.BE,
                priority=None,
                priority_class=PriorityClass.BATCH,
                cgroup=ENCODER,
                backend=AppBackend.FILE,
                requests=Resources(1000, 1 << 30),
                workload="video",
                declared_in="/etc/koordlet/hostapps.d/encoder.yaml",
            ),
        ),
        layout=KubeLayout(
            CgroupDriver.CGROUPFS,
            CgroupPath("kubepods"),
            CgroupPath("kubepods/burstable"),
            BE_TIER,
        ),
    )


def quota(target: Target, quota_us: int) -> SetValue:
    """A quota of cpu_suppress with the numbers behind it."""
    terms = (*BUDGET_TERMS, ("share_cores", quota_us / 100_000), ("period_us", 100_000))
    return SetValue(
        *target,
        quota_us,
        owner="cpu_suppress",
        reason=f"BE may use 1.20 of 4 cores; this root gets {quota_us / 100_000:.2f}",
        terms=terms,
    )


def shares(target: Target) -> SetValue:
    """The lowest weight, of be_priority."""
    reason = "BE roots run in what others leave"
    return SetValue(*target, 2, owner="be_priority", reason=reason)


def plan() -> Plan:
    """Suppression in force on two roots, one file held, one struck, one conflict."""
    tier = quota(TIER_QUOTA, 80_000)
    loser = replace(tier, owner="cpu_burst", value=None, reason="burst")
    return Plan(
        writes=(
            tier,
            quota(ENCODER_QUOTA, 40_000),
            shares(TIER_SHARES),
            SetValue(*BATCH_IDLE, 1, owner="be_priority", reason="nobody else writes the weight"),
            SetValue(
                *CONTAINER_QUOTA,
                None,
                owner="cpu_suppress",
                reason="a child's quota may not exceed the tier's",
                channel=Channel.SPEC,
                container_id="c" * 64,
            ),
        ),
        holds=(Hold(*HELD, owner="be_priority", why="cpu.shares cannot be read: EIO"),),
        conflicts=(Conflict(tier, loser, "protection before benefit"),),
        struck=(
            Struck(
                SetValue(WEB, Knob.CPU_QUOTA, 1_000, owner="cpu_suppress", reason="", terms=()),
                "latency-sensitive work is never limited",
            ),
        ),
    )


def owned() -> tuple[Owned, ...]:
    """What the journal holds for the plan."""
    file, spec = Channel.FILE, Channel.SPEC
    since = NOW_S - 120.0
    return (
        Owned(*TIER_QUOTA, "cpu_suppress", file, "-1", "80000", since),
        Owned(*ENCODER_QUOTA, "cpu_suppress", file, "-1", "40000", since),
        Owned(*TIER_SHARES, "be_priority", file, "1024", "2", since),
        Owned(*BATCH_IDLE, "be_priority", file, "0", "1", since),
        Owned(*BATCH_SHARES, "be_priority", file, "2", "3", since, side_effect=True),
        Owned(*HELD, "be_priority", file, "1024", "2", since),
        Owned(*CONTAINER_QUOTA, "cpu_suppress", spec, "100000", "-1", since, "c" * 64),
    )


def outcomes() -> dict[Target, Outcome]:
    """What came of the newest writes."""
    applied = Outcome(*TIER_QUOTA, "cpu_suppress", Status.APPLIED, "90000", "80000")
    refused = Outcome(
        *ENCODER_QUOTA,
        "cpu_suppress",
        Status.REFUSED,
        before="50000",
        errno=22,
        why="EINVAL: host-best-effort/encoder/job has a quota of 60000 us",
    )
    past = Outcome(
        CgroupPath("kubepods/besteffort/podgone"),
        Knob.CPU_IDLE,
        "be_priority",
        Status.RESTORED,
        "1",
        "0",
        reason="the pod left",
    )
    unchanged = Outcome(*TIER_SHARES, "be_priority", Status.UNCHANGED, "2", "2")
    return {entry.key: entry for entry in (applied, refused, past, unchanged)}


def capabilities() -> Capabilities:
    """A v1 host that cannot do cpu.idle, with a few other abilities."""
    proven = {
        knob: Capability(knob.value, Proof.PROVEN)
        for knob in (Knob.CPU_QUOTA, Knob.CPU_SHARES, Knob.CPUSET_CPUS)
    }
    idle = Capability(
        Knob.CPU_IDLE.value,
        Proof.ABSENT,
        why="no cpu.idle below /sys/fs/cgroup/cpu",
        remedy="Linux 5.15 or newer",
    )
    return Capabilities(
        cgroup_versions={"cpu": 1, "cpuset": 1, "memory": 1},
        knobs={**proven, Knob.CPU_IDLE: idle},
        others={
            "psi": Capability("psi", Proof.UNPROVEN, detail="/proc/pressure/cpu"),
            "cfs-quota-new-containers": Capability(
                "cfs-quota-new-containers",
                Proof.REFUSED,
                why="cgroup v1 refuses a quota above the parent's",
                remedy="use cpuSuppressPolicy cpuset",
            ),
            "inotify": Capability("inotify", Proof.REFUSED, "EMFILE", "raise max_user_instances"),
        },
    )


def slo_status() -> SloStatus:
    """Suppression by quota and the lowest weight with idle switched on; one warning."""
    slo = DEFAULT_NODESLO
    cpu_qos = replace(slo.qos.be.cpu_qos, enable=True, sched_idle=1)
    slo = replace(
        slo,
        threshold=replace(
            slo.threshold, enable=True, cpu_suppress_policy=CpuSuppressPolicy.CFS_QUOTA
        ),
        qos=replace(slo.qos, be=replace(slo.qos.be, cpu_qos=cpu_qos)),
    )
    warning = Problem(
        "nodeslo-unknown-field",
        "/etc/koordlet/nodeslo.yaml: spec.cpuSupress",
        "unknown field",
        remedy="did you mean cpuSuppressPolicy?",
        severity=Severity.WARNING,
    )
    return SloStatus(slo, "/etc/koordlet/nodeslo.yaml", 3, WALL_S - 600, (warning,))


def strategies() -> tuple[StrategyStatus, ...]:
    """Both strategies at work, the first until told otherwise, the second for half an hour."""
    return (
        StrategyStatus(
            "be_priority", Mode.ENFORCE, None, enabled=True, owned=4, hold_why="",
            hold_age_s=0.0, terms=(), notes=(),
        ),
        StrategyStatus(
            "cpu_suppress", Mode.ENFORCE, WALL_S + 1_800, enabled=True, owned=3, hold_why="",
            hold_age_s=0.0, terms=BUDGET_TERMS, notes=(),
        ),
    )  # fmt: skip


def core_status() -> CoreStatus:
    """A core that has decided."""
    cpus = tuple(Cpu(number, number, 0, 0, 0) for number in range(4))
    return CoreStatus(
        pid=4242,
        started_wall_s=WALL_S - 3_600,
        dry_run=False,
        released=(),
        takeover="",
        journal_path="/run/koordlet/journal.db",
        node=NodeFacts(
            name="node-1",
            topology=Topology(cpus),
            capacity_cores=4.0,
            memory_bytes=16 << 30,
            reserved_cores=0.5,
            cpu_manager=CpuManagerPolicy.NONE,
        ),
        be_roots=(BeRoot(ENCODER, "encoder"), BeRoot(BE_TIER, "tier")),
        floor_bound=False,
        strategies=strategies(),
        problems=(),
        waiting_for=(),
    )


def readings() -> ReadingsTable:
    """Use of the node, the tier, the pods and the application; nothing of pod liar-1."""
    table = ReadingsTable()
    keys = (
        EntityKey(Level.NODE),
        EntityKey(Level.TIER, name="besteffort"),
        EntityKey(Level.POD, uid=WEB.name.removeprefix("pod"), pod="web-1", namespace="default"),
        EntityKey(
            Level.POD, uid=BATCH.name.removeprefix("pod"), pod="batch-1", namespace="default"
        ),
        EntityKey(Level.APP, name="encoder"),
        EntityKey(Level.CONTAINER, container_id="c" * 64, container="main"),
    )
    cpu = {1: 0.8, 2: 0.9, 3: 0.8, 4: 0.4, 5: 0.8}
    detail = tuple(0.05 if "ratio" in name else float(1 << 28) for name in FIELDS[Group.DETAIL])
    table.apply(
        Readings(
            tick=1,
            keys=tuple(enumerate(keys)),
            changed=(
                (0, Group.NODE_CPU, (2.3, *(0.0,) * (len(FIELDS[Group.NODE_CPU]) - 1))),
                (0, Group.NODE_SHARES, (0.9, 0.0, 0.2, 1.2)),
                (0, Group.NODE_MEMORY, (16e9, 8e9, 8e9, 9e9, 8e9, 7e9)),
                *((index, Group.CPU, (cores, 1_000.0)) for index, cores in cpu.items()),
                (3, Group.DETAIL, detail),
            ),
        )
    )
    return table


def ticks() -> tuple[TickStats, ...]:
    """Three ticks a second apart."""
    return tuple(
        TickStats(
            tick=number,
            at_wall_s=WALL_S - 3 + number,
            cause=TickCause.REGULAR,
            duration_s=0.004,
            run_s=0.006,
            reads=120,
            opens=2,
            writes=1,
            overrun=False,
        )
        for number in (1, 2, 3)
    )


def history_answer(query: RangeQuery) -> RangeAnswer:
    """Use of the node and of batch-1 over three steps; in the second nobody measured batch-1."""
    step_s = query.step_s or 60
    since_s = int(query.since_s // step_s) * step_s
    count = len(query.percentiles)
    node = Subject(Level.NODE, "", "", "", "", "")
    batch = Subject(Level.POD, "", "default", "batch-1", BATCH.name.removeprefix("pod"), "")
    lines = []
    for subject, qos, at in ((node, None, (0, 1, 2)), (batch, "BE", (0, 2))):
        points = [
            Stat(since_s + n * step_s, 60, 0.25, 0.5 + n / 4, 1.5, (1.0,) * count) for n in at
        ]
        whole = Stat(since_s, 60 * len(at), 0.25, 0.75, 1.5, (1.0,) * count)
        lines.append(Line(subject, qos, "used_cpu_cores", tuple(points), whole))
    return RangeAnswer(since_s, since_s + 3 * step_s, step_s, tuple(lines))


def audit_event() -> AuditEvent:
    """The write that put the tier's quota in force."""
    return AuditEvent(
        WALL_S - 1,
        "write",
        "cpu_suppress",
        target=TIER_QUOTA[0],
        knob=TIER_QUOTA[1].value,
        path=file_path(TIER_QUOTA),
        from_text="-1",
        to_text="80000",
        reason="BE may use 1.20 of 4 cores; this root gets 0.80",
        terms=(("budget_cores", 1.2), ("share_cores", 0.8)),
        outcome="applied",
    )


def node_view() -> NodeView:
    """The whole view of a host under suppression."""
    done = outcomes()
    the_plan = plan()
    named: set[Target] = {write.key for write in the_plan.writes}
    named |= {hold.key for hold in the_plan.holds} | {entry.key for entry in owned()}
    named |= set(done) | {struck.action.key for struck in the_plan.struck}
    paths = {key: file_path(key) for key in named}
    return NodeView(
        node="node-1",
        taken_wall_s=WALL_S,
        version="0.1.0",
        run_dir="/run/koordlet",
        cgroup_root="/",
        core=core_status(),
        core_age_s=0.3,
        ticks=ticks(),
        workloads=workloads(),
        capabilities=capabilities(),
        plan=the_plan,
        owned=owned(),
        outcomes=done,
        paths=paths,
        readings=readings(),
        slo=slo_status(),
        sources=(
            SourceStatus("core", SourceState.OK, "/run/koordlet/core.sock", 0.3),
            SourceStatus("cri", SourceState.OK, "/run/containerd/containerd.sock", 2.0),
            SourceStatus("hostapps", SourceState.OK, "/etc/koordlet/hostapps.d", 12.0),
            SourceStatus("kubelet", SourceState.OFF, "no kubelet found", None),
        ),
        taken_s=NOW_S,
    )


def everything_missing() -> NodeView:
    """A front that has just started: no core, no source, no reading, no NodeSLO."""
    why = Missing("nothing has answered yet")
    return replace(
        node_view(),
        core=why,
        core_age_s=1.0,
        ticks=(),
        workloads=why,
        capabilities=why,
        plan=why,
        owned=(),
        outcomes={},
        paths={},
        readings=ReadingsTable(),
        slo=why,
        sources=(),
        taken_s=None,
    )


def core_gone() -> NodeView:
    """The core died half a minute ago; its last words are still there."""
    return replace(node_view(), core_age_s=31.0)


def no_workloads() -> NodeView:
    """A host without a runtime where nothing is declared."""
    core = replace(core_status(), be_roots=(), waiting_for=())
    empty = Workloads((), 0.1, (), Missing("no kubepods directory"))
    return replace(
        node_view(),
        core=core,
        workloads=empty,
        plan=Plan(),
        owned=(),
        outcomes={},
        paths={},
        readings=ReadingsTable(),
    )


NASTY_NAME = "evil\x1b[31m\x1b]0;owned\x07\n[bold]\x9b2J\u202egnp.exe\udc80-名前"


def nasty_names() -> NodeView:
    """Names that want to steer the terminal: escapes, C1 controls, newlines, markup, bidi."""
    view = node_view()
    whole = workloads()
    nasty = pod(BATCH, NASTY_NAME, Qos.BE, KubeQos.BEST_EFFORT, claim="BE\x1b[0m\n")
    nasty = replace(nasty, record=replace(nasty.record, namespace="[red]ns\x1b"))
    app = replace(whole.apps[0], name=NASTY_NAME, workload="\x1b[2J", declared_in="\n\n")
    core = replace(
        core_status(),
        problems=(Problem("x", "pod " + NASTY_NAME, "said \x1b[31m\n", "\x07", "\x1bc"),),
    )
    return replace(view, workloads=replace(whole, pods=(nasty,), apps=(app,)), core=core)


def observing() -> NodeView:
    """cpu_suppress in observe mode, holding for want of numbers; be_priority released."""
    view = node_view()
    first, second = strategies()
    second = replace(
        second,
        mode=Mode.OBSERVE,
        owned=0,
        hold_why="the use of this node is not known",
        hold_age_s=12.5,
        would=(quota(TIER_QUOTA, 70_000),),
    )
    core = replace(core_status(), released=("owner:be_priority",), strategies=(first, second))
    return replace(
        view,
        core=core,
        plan=Plan(),
        owned=(),
        outcomes={},
        paths={TIER_QUOTA: file_path(TIER_QUOTA)},
    )


ALL_VIEWS = {
    "normal": node_view,
    "everything-missing": everything_missing,
    "core-gone": core_gone,
    "no-workloads": no_workloads,
    "nasty-names": nasty_names,
    "observing": observing,
}
