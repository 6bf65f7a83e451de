"""The files that start a cluster: what Ray, bash and Kubernetes would say of them, and how they are written out."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from support.places import REPOSITORY

from kinoray.cluster.starting import KINDS, write_cluster_files
from kinoray.errors import UsageError

TEMPLATES = REPOSITORY / "cluster" / "templates"
FILES = [file for kind in KINDS.values() for file in kind.files]
RAY_UP = ("ray-up-ssh.yaml", "ray-up-aws.yaml")


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((TEMPLATES / name).read_text(encoding="utf-8")))


def ray_options(command: str) -> set[str]:
    """The long options that a command of `ray` knows."""
    from ray.scripts import scripts

    known = scripts.cli.commands[command].params
    return {name for parameter in known for name in [*parameter.opts, *parameter.secondary_opts]}


def named_options(text: str) -> set[str]:
    return {word.partition("=")[0] for word in shlex.split(text) if word.startswith("--") and word != "--"}


@pytest.mark.parametrize("file", [kind.files[0] for kind in KINDS.values()], ids=lambda file: file.name)
def test_every_kind_says_what_it_is_for_and_the_one_command(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines = lines[1:] if lines[0].startswith("#!") else lines
    assert re.fullmatch(r"# .*\.", lines[0]), "one sentence"
    assert lines[1] == "#" and lines[3] == "#" and re.match(r"#   [a-z]+ ", lines[2]), "then the command"
    assert file.name in lines[2]


@pytest.mark.parametrize("file", [file for file in FILES if file.suffix != ".json"], ids=lambda file: file.name)
def test_every_file_has_a_comment_first_and_fits_a_page(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("#") and max(map(len, lines)) <= 120


def test_every_template_has_a_kind_and_travels_in_the_wheel() -> None:
    assert set(FILES) == {*TEMPLATES.iterdir(), *(REPOSITORY / "cluster" / "monitoring").iterdir()}
    packed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    folder = REPOSITORY / "cluster"
    assert {file for pattern in packed["kinoray.cluster"] for file in folder.glob(pattern)} >= set(FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_holds_a_secret(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"[0-9a-f]{24,}|[A-Za-z0-9+]{40,}|AKIA|BEGIN .*PRIVATE KEY", text)
    assert not re.search(r"(?i)\b(password|secret[_-]?key|auth_token)\b\s*[:=]\s*(?![~\s])", text)
    assert not re.search(r"RAY_AUTH_TOKEN=(?!\$\()", text)


@pytest.mark.parametrize("name", RAY_UP)
def test_rays_launcher_accepts_the_file_as_it_is_and_with_its_defaults(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    (config,) = documents(name)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    if config["provider"]["type"] == "local":  # of the other its machines' memory would be asked for in the cloud
        config = prepare_config(config)
        assert config["available_node_types"]["local.cluster.node"]["max_workers"] == 2
    else:
        config |= {"cluster_synced_files": []}
        assert config["head_node_type"] in config["available_node_types"]
        assert sum(group.get("min_workers", 0) for group in config["available_node_types"].values()) > 0
    validate_config(config)


@pytest.mark.parametrize("name", RAY_UP)
def test_ray_up_starts_with_a_token_and_options_that_ray_start_knows(name: str) -> None:
    (config,) = documents(name)
    starts = [
        command
        for which in ("head", "worker")
        for command in config[f"{which}_start_ray_commands"]
        if "ray start" in command
    ]
    assert len(starts) == 2
    for command in starts:
        assert named_options(command) <= ray_options("start")
    commands = [*starts, *config["setup_commands"]]
    assert any("RAY_AUTH_MODE=token" in command for command in commands)
    assert list(config["file_mounts"]) == ["~/.ray/auth_token"]


def test_the_slurm_script_is_bash_and_its_ray_knows_its_options() -> None:
    file = TEMPLATES / "slurm.sh"
    subprocess.run([shutil.which("bash") or "bash", "-n", file], check=True)
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    (line,) = (line for line in text.splitlines() if "ray symmetric-run" in line)
    start, _, entrypoint = line.partition("ray symmetric-run")[2].partition(" -- ")
    options = named_options(start)
    assert options & ray_options("symmetric-run") == {"--address", "--min-nodes"}
    assert options - ray_options("symmetric-run") <= ray_options("start")
    # symmetric-run does not tell its command where Ray is, and kinoray would start one of its own.
    assert entrypoint.split()[:2] == ["env", 'RAY_ADDRESS="$address"']
    assert "#SBATCH --exclusive" in text, "it ends with `ray stop`, for every Ray of the user on the machine"


def check_pod(template: dict[str, Any], gpus: int) -> None:
    """A pod's template: image of ours, equal requests and limits, memory for the object store, the shared volume."""
    spec = template["spec"]
    (container,) = spec["containers"]
    assert container["image"].endswith(f"kinoray:{version('kinoray')}")
    resources = container["resources"]
    assert resources["requests"] == resources["limits"] and {"cpu", "memory"} <= set(resources["limits"])
    assert int(resources["limits"].get("nvidia.com/gpu", 0)) == gpus
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"shared": "/shared", "shm": "/dev/shm"}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert set(volumes) == set(mounts)
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == "kinoray-shared"
    assert any(port["name"] == "metrics" for port in container["ports"])


def check_cluster(spec: dict[str, Any]) -> None:
    """What the operator demands of a RayCluster, and what the file's head promises."""
    assert spec["rayVersion"] == version("ray")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["enableInTreeAutoscaling"] is True and spec["autoscalerOptions"]["version"] == "v2"
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    check_pod(head["template"], gpus=0)
    assert {f"--{name}" for name in head["rayStartParams"]} <= ray_options("start")
    assert all(isinstance(value, str) for value in head["rayStartParams"].values())
    assert [group["groupName"] for group in groups] == ["cpu", "gpu"]
    for group in groups:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        assert group["rayStartParams"] == {}
        check_pod(group["template"], gpus=int(group["groupName"] == "gpu"))


def test_the_kuberay_cluster_has_its_volume_and_every_field_that_it_needs() -> None:
    claim, cluster = documents("kuberay-cluster.yaml")
    assert (claim["apiVersion"], claim["kind"]) == ("v1", "PersistentVolumeClaim")
    assert claim["metadata"]["name"] == "kinoray-shared" and claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert (cluster["apiVersion"], cluster["kind"]) == ("ray.io/v1", "RayCluster")
    assert cluster["metadata"]["name"] == "kinoray"
    check_cluster(cluster["spec"])


def test_the_kuberay_job_runs_a_command_of_ours_on_the_same_cluster() -> None:
    (job,) = documents("kuberay-job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    spec = job["spec"]
    assert spec["entrypoint"].startswith("kinoray run ") and "--runs /shared/" in spec["entrypoint"]
    assert spec["shutdownAfterJobFinishes"] is True and spec["backoffLimit"] > 0
    check_cluster(spec["rayClusterSpec"])
    lasting = documents("kuberay-cluster.yaml")[1]["spec"]
    lasting["workerGroupSpecs"][1] |= {"minReplicas": 1, "replicas": 1}  # a run's GPUs must be up when it begins
    assert spec["rayClusterSpec"] == lasting


def test_the_container_is_built_from_what_the_package_is_made_of() -> None:
    text = (TEMPLATES / "Dockerfile").read_text(encoding="utf-8")
    assert f"rayproject/ray:{version('ray')}" in text
    copied = {
        word
        for line in text.splitlines()
        if line.startswith("COPY")
        for word in line.split()[1:-1]
        if not word.startswith("--")
    }
    assert all((REPOSITORY / name).exists() for name in copied)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    places = {folder.split("/")[0] for folder in project["tool"]["setuptools"]["package-dir"].values()}
    assert copied >= places | {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}


def test_files_are_written_once_and_never_over_another(tmp_path: Path) -> None:
    (file,) = write_cluster_files("slurm", tmp_path / "new")
    assert file.read_text() == (TEMPLATES / "slurm.sh").read_text()
    file.write_text("mine")
    with pytest.raises(UsageError, match=r"slurm\.sh exists already; nothing was written"):
        write_cluster_files("slurm", tmp_path / "new")
    assert file.read_text() == "mine"
    with pytest.raises(UsageError, match=r"no files for 'pbs'\. Choose one of ssh, aws, "):
        write_cluster_files("pbs", tmp_path)
    with pytest.raises(UsageError, match=r"Cannot write .*File exists"):
        write_cluster_files("slurm", file)


def test_the_command_lists_the_kinds_and_writes_one(kino, tmp_path: Path) -> None:
    code, out, _ = kino("cluster", "init")
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == list(KINDS)
    kinds = json.loads(kino("cluster", "init", "--json")[1])["kinds"]
    assert [kind["name"] for kind in kinds] == list(KINDS) and all(kind["about"].endswith(".") for kind in kinds)
    code, out, _ = kino("cluster", "init", "kuberay", tmp_path)
    assert (code, out) == (0, f"Wrote {tmp_path / 'kuberay-cluster.yaml'}\n")
    assert kino("cluster", "init", "kuberay", tmp_path)[0] == 2
