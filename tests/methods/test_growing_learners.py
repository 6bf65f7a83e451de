"""Rules around learners that grow: what goes together learns, and what does not is refused before a start."""

from dataclasses import replace
from pathlib import Path

import pytest

from kinoray.errors import UsageError
from kinoray.runs.method_source import find_method
from kinoray.streams import Stream
from kinoray.testing.engine import digest_of_run, run_spec, spec_of
from kinoray.testing.small_stream import on_protocol, suited


@pytest.mark.parametrize(("pair", "protocol"), [("er_ring:frame_fusion_moe", "ctvr"), ("lump:pnn", "ucl")])
def test_a_rule_whose_learner_grows_learns_two_tasks_and_repeats_itself(
    pair: str, protocol: str, micro: Stream, tmp_path: Path
) -> None:
    stream = on_protocol(suited(pair, on_protocol(micro, protocol)), protocol)
    stream = replace(stream, recipe=replace(stream.recipe, max_steps=3))
    specs = [spec_of(pair, stream, tmp_path / name) for name in ("one", "two")]
    assert all(run_spec(spec) for spec in specs)
    assert len({digest_of_run(spec) for spec in specs}) == 1


@pytest.mark.parametrize(
    "pair",
    [
        "lwf:moe_adapter",
        "lwf:frame_fusion_moe",
        "co2l:moe_adapter",
        "zscl:moe_adapter",
        "vr_lwf:moe_adapter",
        "der:moe_adapter",
        "der:pnn",
        "si:pnn",
        "ccsl:pnn",
    ],
)
def test_a_rule_that_compares_encoders_refuses_one_for_each_task(pair: str) -> None:
    rule, learner = pair.split(":")
    message = (
        f"{pair}: {rule} compares the encoder with its earlier state, but {learner} "
        "has a separate encoder for each task"
    )
    with pytest.raises(UsageError, match=message):
        find_method(pair).load()
