"""Two machines with disks of their own, both on this one: what is not shared is found before the first step."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from kinoray.data.manifest import read_manifest, write_table
from kinoray.execution import shared_storage
from kinoray.execution.shared_storage import MANIFESTS, Sight, _look, seen_by_all
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.testing.engine import resolved, spec_of

DRIVER = """
import json, pickle, sys
from pathlib import Path
import kinoray
told = []
for verb, method, options in pickle.loads(Path(sys.argv[1]).read_bytes()):
    try:
        getattr(kinoray, verb)(method, quiet=True, **options)
        told.append("")
    except kinoray.errors.KinorayError as error:
        told.append(str(error))
print(json.dumps(told))
"""
Drive = Callable[..., list[str]]


def test_a_machine_says_what_it_does_not_see(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("word")
    (tmp_path / "a.mp4").write_bytes(b"1234")
    sight = Sight(str(tmp_path / "token"), "word", ((str(tmp_path / "a.mp4"), 4),), ())
    assert _look(sight) == ""
    assert f"does not see the folder of runs {tmp_path}" in _look(replace(sight, word="other"))
    assert "or has another file there" in _look(replace(sight, videos=((str(tmp_path / "a.mp4"), 5),)))
    (tmp_path / "a.mp4").unlink()
    assert f"does not see {tmp_path / 'a.mp4'}" in _look(sight)
    unknown = _look(replace(sight, rendered=("no-such-stream",)))
    assert unknown.startswith(f"lacks {tmp_path / 'a.mp4'} and cannot render it: ")


def test_the_clips_of_a_reference_set_are_looked_for_as_well(micro: Stream, tmp_path: Path, monkeypatch) -> None:
    asked: list[Sight] = []
    monkeypatch.setattr(shared_storage, "_other_nodes", lambda: [{}])
    monkeypatch.setattr(shared_storage, "_ask", lambda nodes, sight: asked.append(sight))
    run = resolved("base_moco", replace(micro, tasks=micro.tasks[:1]), tmp_path)
    seen_by_all([run, replace(run, reference=replace(micro, tasks=micro.tasks[1:]))])
    without, beside = ([Path(path).parent for path, _ in sight.videos] for sight in asked)
    (other,) = {Path(clip.path).parent for clip in [read_manifest(micro.tasks[1].manifest).clip(0)]}
    assert other not in without and len(beside) == 4 and beside[2:] == [other, other]


def test_a_machine_that_joined_later_renders_what_it_lacks(micro: Stream, tmp_path: Path, monkeypatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(shared_storage, "load_stream", loaded.append)
    spec = replace(spec_of("base_moco", micro, tmp_path), rendered=("micro",))
    shared_storage.render_here(spec)
    assert loaded == [], "all is there"
    manifest = read_manifest(spec.tests[1])
    elsewhere = write_table(manifest.table, tmp_path / "copy.parquet", tmp_path / "nowhere").path
    tasks = micro.tasks[0], replace(micro.tasks[1], manifest=elsewhere)
    lacking = replace(spec, run=replace(spec.run, stream=replace(micro, tasks=tasks)))
    shared_storage.render_here(replace(lacking, rendered=()))
    assert loaded == [], "videos of one's own are on shared storage, or missing"
    shared_storage.render_here(lacking)
    assert loaded == ["micro"]
    shared_storage.render_here(replace(spec, reference=str(elsewhere), rendered=("micro", "stills")))
    assert loaded == ["micro", "micro", "stills"], "a reference set is lacked as well"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that the other machine has its own of."""
    (tmp_path / "private").mkdir()
    return tmp_path / "private"


@pytest.fixture
def drive(private: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Drive]:
    """Call verbs on a Ray whose CPUs are all on the other machine; returns what each said when it failed, else ""."""
    import ray._private.utils as utils
    from ray.cluster_utils import Cluster

    hide = f"mount -t tmpfs tmpfs {private}"
    if subprocess.run(["unshare", "-m", "sh", "-c", hide], capture_output=True).returncode:
        pytest.skip("this user may not make mount namespaces")
    monkeypatch.setattr(utils, "write_ray_address", lambda address, temp_dir=None: None)
    folder = tempfile.mkdtemp(prefix="kr", dir="/tmp")  # sockets need a short path
    place = {"num_cpus": 0, "object_store_memory": 150_000_000, "temp_dir": folder, "include_dashboard": False}
    head = Cluster(initialize_head=True, head_node_args=place, shutdown_at_exit=False)
    start = [Path(sys.executable).with_name("ray"), "start", f"--address={head.address}", "--num-cpus=2", "--block"]
    start += ["--object-store-memory=150000000", "--disable-usage-stats"]
    command = ["unshare", "-m", "sh", "-c", f'{hide} && exec "$@"', "sh", *map(str, start)]
    output = tmp_path / "node.txt"
    with output.open("w") as log:
        node = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def call(*jobs: tuple[str, str, dict[str, Any]]) -> list[str]:
        (tmp_path / "job").write_bytes(pickle.dumps(jobs))
        words = [sys.executable, "-c", DRIVER, str(tmp_path / "job")]
        environment = os.environ | {"RAY_ADDRESS": head.address}
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout.splitlines()[-1])

    try:
        wait_until(lambda: len([n for n in _nodes(head.address) if n["Alive"]]) == 2, node, every_s=0.5, log=output)
        yield call
    finally:
        os.killpg(node.pid, 15)
        node.wait(30)
        head.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _nodes(address: str) -> list[dict[str, Any]]:
    from ray._private.state import GlobalState
    from ray._raylet import GcsClientOptions

    state = GlobalState()
    options = GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    return state.node_table()


def with_manifests_in(stream: Stream, folder: Path) -> Stream:
    """The same clips, named by manifests that lie elsewhere."""
    tasks = []
    for task in stream.tasks:
        manifest = read_manifest(task.manifest)
        copy = write_table(manifest.table, folder / f"{task.name}.parquet", manifest.root)
        tasks.append(replace(task, manifest=copy.path))
    return replace(stream, tasks=tuple(tasks))


@pytest.mark.ray
@pytest.mark.slow
def test_only_the_folder_of_runs_and_the_videos_need_be_shared(
    micro: Stream, private: Path, drive: Drive, tmp_path: Path
) -> None:
    stream = with_manifests_in(micro, private)
    shared = {"stream": stream, "runs": tmp_path / "runs"}
    space = {"m_hat": {"low": 0.9, "high": 1.0}}
    fixed = {"queue_size": 16, "max_steps": 4}
    refused, *others = drive(
        ("run", "base_moco", {"stream": stream, "runs": private / "runs"}),
        ("run", "base_moco", shared | {"settings": {"max_steps": 1, "validations": 1}}),
        ("sweep", "bmu_moco", shared | {"trials": 1, "space": space, "settings": fixed, "name": "s"}),
    )
    assert refused.startswith("Machine ") and f"does not see the folder of runs {private / 'runs'}" in refused
    assert "\n" not in refused and others == ["", ""]
    for method in ("base_moco", "bmu_moco"):
        (folder,) = (tmp_path / "runs").glob(f"{method}-*/seed-0")
        assert Result(folder).outcome["state"] == "finished"
    assert len(list((tmp_path / "runs" / MANIFESTS).glob("*.parquet"))) == len(stream.tasks)
