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

OF_RAY_DATA = {"datasets_stats_actor", "AutoscalingCoordinator"}


def actors_of_ray_data() -> list[dict[str, str]]:
    return [actor for actor in list_named_actors(all_namespaces=True) if actor["name"] in OF_RAY_DATA]


@pytest.mark.ray
def test_an_execution_on_a_lean_ray_starts_no_actor(cluster: None) -> None:
    for actor in actors_of_ray_data():  # another test's
        ray.kill(ray.get_actor(**actor))
    settle_data()
    rows = ray.data.range(64, override_num_blocks=4).map_batches(lambda batch: {"twice": 2 * batch["id"]})
    assert sorted(row["twice"] for row in rows.iter_rows()) == list(range(0, 128, 2))
    assert not actors_of_ray_data()


def test_elsewhere_ray_is_asked_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    executor: Any = streaming_executor
    monkeypatch.setattr(executor, "create_cluster_autoscaler", lambda *given, **_: asked.append(given) or "of Ray")
    for name in NOTES:
        monkeypatch.setattr(_StatsManager, name, staticmethod(lambda *given: asked.append(given)))
    monkeypatch.setattr(lean_data, "is_lean", lambda: False)
    settle_data.__wrapped__()
    assert executor.create_cluster_autoscaler("topology", execution_id="7") == "of Ray"
    for name in NOTES:
        getattr(_StatsManager, name)(name)
    assert asked == [("topology",), *((name,) for name in NOTES)]
