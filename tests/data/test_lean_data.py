"""Ray Data's own actors: none on a lean Ray, as Ray has them elsewhere."""

from typing import Any

import pytest
import ray
import ray.data
from ray.data._internal.execution import streaming_executor
from ray.data._internal.stats import _StatsManager
from ray.util import list_named_actors

from kinoray.data import lean_data
from kinoray.data.lean_data import NOTES, settle_data


def named_actors() -> set[str]:
    return {actor["name"] for actor in list_named_actors(all_namespaces=True)}


@pytest.mark.ray
def test_an_execution_on_a_lean_ray_starts_no_actor(cluster: None) -> None:
    before = named_actors()
    settle_data()
    rows = ray.data.range(64, override_num_blocks=4).map_batches(lambda batch: {"twice": 2 * batch["id"]})
    assert sorted(row["twice"] for row in rows.iter_rows()) == list(range(0, 128, 2))
    assert named_actors() == before


def test_elsewhere_ray_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    executor: Any = streaming_executor
    monkeypatch.setattr(executor, "create_cluster_autoscaler", lambda *given, **_: asked.append(given) or "of Ray")
    for name in NOTES:
        monkeypatch.setattr(_StatsManager, name, staticmethod(lambda *given: asked.append(given)))
    monkeypatch.setattr(_StatsManager, "gen_dataset_id_from_stats_actor", staticmethod(lambda: "number"))
    monkeypatch.setattr(lean_data, "is_lean", lambda: False)
    settle_data.__wrapped__()
    assert executor.create_cluster_autoscaler("topology", execution_id="7") == "of Ray"
    assert _StatsManager.gen_dataset_id_from_stats_actor() == "number"
    for name in NOTES:
        getattr(_StatsManager, name)(name)
    assert asked == [("topology",), *((name,) for name in NOTES)]
