"""What kubelet is pointed at, in all the places where that may be written."""

from __future__ import annotations

from pathlib import Path

from runtimeproxy.ctl.kubelet import find_kubelet, parse_flags, problems, steps

PROXY = Path("/run/koord-runtimeproxy/runtimeproxy.sock")
RUNTIME = Path("/run/containerd/containerd.sock")


def host(tmp_path: Path, *words: str, **files: str) -> tuple[Path, Path]:
    """A /proc with one kubelet, and a root with files by their name."""
    process = tmp_path / "proc/77"
    process.mkdir(parents=True)
    (process / "cmdline").write_bytes(b"\0".join(map(str.encode, ("/usr/bin/kubelet", *words))))
    directory = tmp_path / "root/var/lib/kubelet"
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name.replace("__", "-").replace("_", ".")).write_text(text)
    return tmp_path / "proc", tmp_path / "root"


def test_no_kubelet(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    found = find_kubelet(tmp_path / "proc", tmp_path)
    assert not found.running and not found.settings
    assert found.endpoint == f"unix://{RUNTIME}", "the default"


def test_the_command_line_counts_first(tmp_path: Path) -> None:
    proc, root = host(
        tmp_path,
        "--container-runtime-endpoint",
        f"unix://{PROXY}",
        config_yaml=f"containerRuntimeEndpoint: unix://{RUNTIME}\n",
    )
    found = find_kubelet(proc, root)
    assert found.running and found.endpoint == f"unix://{PROXY}"
    told = problems(found, PROXY, RUNTIME)
    assert [problem.code for problem in told] == ["kubelet-places-differ"]


def test_kubeadms_files_are_read(tmp_path: Path) -> None:
    proc, root = host(
        tmp_path,
        kubeadm__flags_env=f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix://{PROXY} -x"',
        instance__config_yaml=f"containerRuntimeEndpoint: unix://{PROXY}\n",
        config_yaml="imageServiceEndpoint: unix:///run/images.sock\n",
    )
    found = find_kubelet(proc, root)
    assert {one.where.partition(":")[0] for one in found.settings} == {
        "/var/lib/kubelet/instance-config.yaml",
        "/var/lib/kubelet/config.yaml",
        "/var/lib/kubelet/kubeadm-flags.env",
    }
    assert found.endpoint == f"unix://{PROXY}"
    assert not problems(found, PROXY, RUNTIME)


def test_CRI_21_an_endpoint_at_the_wrong_flag_is_told(tmp_path: Path) -> None:
    proc, root = host(tmp_path, f"--docker-endpoint=unix://{PROXY}")
    told = problems(find_kubelet(proc, root), PROXY, RUNTIME)
    assert [problem.code for problem in told] == ["kubelet-wrong-flag"]


def test_CRI_21_a_path_without_its_scheme_is_told(tmp_path: Path) -> None:
    proc, root = host(tmp_path, f"--container-runtime-endpoint={PROXY}")
    told = problems(find_kubelet(proc, root), PROXY, RUNTIME)
    assert [problem.code for problem in told] == ["kubelet-endpoint-no-url"]
    assert f"unix://{PROXY}" in told[0].remedy


def test_broken_files_are_no_obstacle(tmp_path: Path) -> None:
    proc, root = host(tmp_path, config_yaml="a: [", kubeadm__flags_env="KUBELET_KUBEADM_ARGS=\"'")
    assert not find_kubelet(proc, root).settings


def test_flags_as_kubelet_reads_them() -> None:
    assert parse_flags(["--a=1", "--b", "2", "--c", "--d", "--a=3", "-v", "4"]) == {
        "a": "3",
        "b": "2",
        "c": "",
        "d": "",
    }


def test_CRI_21_every_version_is_told_its_own_way() -> None:
    told = "\n".join(steps(f"unix://{PROXY}", kubeadm=True))
    for word in ("1.27", "1.24", "--container-runtime=remote", "cri-socket", "annotate"):
        assert word in told
    assert "kubeadm" not in "\n".join(steps(f"unix://{PROXY}", kubeadm=False))
