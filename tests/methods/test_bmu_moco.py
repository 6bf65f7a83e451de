"""BMU-MoCo beside Eqs. 12-18, Algorithm 1 and the variants of Tables 2 and 3."""

from typing import get_args

import pytest
import torch

from kinoray.equations import info_nce_families
from kinoray.method import StepInfo
from kinoray.methods import bmu_moco
from kinoray.runs.method_source import find_method
from kinoray.testing.engine import digest_of_run, first_batch, fresh_session, one_step, run_spec, spec_of, state_of
from kinoray.training.checkpoint import newest

VARIANTS = get_args(find_method("bmu_moco").load().Config.__annotations__["variant"])
STEP = StepInfo(step=0, last_of_epoch=False, learning_rate=1e-3)


def session_of(micro, tmp_path, **settings):
    return fresh_session(spec_of("bmu_moco", micro, tmp_path, settings=settings))


def test_the_full_loss_holds_both_keys_and_both_queues_in_one_softmax(micro, tmp_path) -> None:
    session = session_of(micro, tmp_path)
    method, (_, batch) = session.method, first_batch(session)
    qV, qT = (x.detach() for x in (method.online.embed_video(batch.video), method.online.embed_text(batch.text)))
    families = [method.family("local"), method.family("global")]
    expected = (
        info_nce_families(qV, [qT, qT], [family.texts.keys_KD for family in families], 0.07)
        + info_nce_families(qT, [qV, qV], [family.videos.keys_KD for family in families], 0.07)
    ) / len(qV)
    assert method.loss(batch).objectives.item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_updates_follow_algorithm_1_in_plain_numbers(variant: str, micro, tmp_path) -> None:
    """One weight followed by hand: pulls in sequence, then averages of the pulled weight."""
    session = session_of(micro, tmp_path, variant=variant, m=0.9, m_hat=0.8)
    method = session.method
    families = {"local": ["local"], "local_no_bmu": ["local"], "global": ["global"], "global_no_bmu": ["global"]}
    used = families.get(variant, ["local", "global"])
    assert list(method.momentum) == used
    start = {"online": 1.0, "local": 0.0, "global": -1.0}
    weight = {name: value for name, value in start.items() if name in ("online", *used)}
    with torch.no_grad():
        for name in weight:
            module = method.online if name == "online" else method.family(name).encoder
            for parameter in module.parameters():
                parameter.fill_(weight[name])
    if variant in ("full", "local", "global", "fixed"):
        for name in used:
            weight["online"] = 0.8 * weight["online"] + 0.2 * weight[name]
    if variant != "fixed":
        for name in used:
            weight[name] = 0.9 * weight[name] + 0.1 * weight["online"]
    rows = torch.nn.functional.normalize(torch.randn(8, method.online.dim), dim=1)
    keys = torch.stack([rows] * len(used), dim=1)
    method.after_step({"kV_BFD": keys, "kT_BFD": keys}, STEP)
    for name, value in weight.items():
        module = method.online if name == "online" else method.family(name).encoder
        for parameter in module.parameters():
            assert torch.allclose(parameter, torch.full_like(parameter, value), atol=1e-6), name
    assert all(int(q.cursor) == 8 for f in method.families() for q in (f.videos, f.texts))


@pytest.mark.parametrize(("variant", "recopied"), [("full", {"local"}), ("fixed", {"local", "global"})])
def test_only_local_averages_are_recopied_at_a_task_except_in_fixed(variant, recopied, micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, variant=variant)
    method = session.method
    with torch.no_grad():
        for parameter in method.online.parameters():
            parameter.add_(0.1)
    method.begin_task(session.task(session.spec.stages[1]))
    for name, family in method.momentum.items():
        same = all(
            torch.equal(a, b) for a, b in zip(method.online.parameters(), family.encoder.parameters(), strict=True)
        )
        assert same == (name in recopied), name


def test_ensemble_merges_once_at_the_end_of_a_task(micro, tmp_path) -> None:
    session = session_of(micro, tmp_path, variant="ensemble", ensemble_keep=0.3)
    method = session.method
    with torch.no_grad():
        for module, value in (
            (method.online, 1.0),
            (method.family("local").encoder, 0.0),
            (method.family("global").encoder, -1.0),
        ):
            for parameter in module.parameters():
                parameter.fill_(value)
    method.end_task(session.task(session.spec.stages[0]))
    assert all(torch.allclose(p, torch.full_like(p, 0.3 * 0.3 - 0.7)) for p in method.online.parameters())


def test_without_pulls_the_local_variant_is_base_moco_bit_for_bit(micro, tmp_path) -> None:
    """m_hat = 1 leaves Eq. 12 without effect, over a whole run of two tasks."""
    base = spec_of("base_moco", micro, tmp_path)
    same = spec_of("bmu_moco", micro, tmp_path, settings={"variant": "local", "m_hat": 1.0})
    assert run_spec(base)
    assert run_spec(same)
    states = [newest(_checkpoints(spec), say=print).tensors("method") for spec in (base, same)]
    online = [{k: v for k, v in state.items() if k.startswith("online.")} for state in states]
    assert online[0].keys() == online[1].keys()
    assert all(torch.equal(online[0][k], online[1][k]) for k in online[0])


def _checkpoints(spec):
    from pathlib import Path

    return Path(spec.folder) / "checkpoints"


def test_no_gradient_reaches_keys_or_averages(micro, tmp_path) -> None:
    step = one_step(spec_of("bmu_moco", micro, tmp_path))
    assert all(name.startswith("online.") for name in step["gradients"])
    assert len(step["gradients"]) == len(list(step["method"].online.parameters()))


def test_seeds_change_the_run_and_the_same_seed_does_not(micro, tmp_path) -> None:
    specs = [spec_of("bmu_moco", micro, tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    assert all(map(run_spec, specs))
    first, again, other = map(digest_of_run, specs)
    assert first == again != other


def test_state_is_all_in_parameters_and_buffers(micro, tmp_path) -> None:
    names = state_of(session_of(micro, tmp_path).method).keys()
    for part in ("online.", "momentum.local.average.", "momentum.global.average.", "momentum.local.videos.keys_KD"):
        assert any(name.startswith(part) for name in names), part


def test_every_variant_that_the_config_takes_is_a_row_of_the_table() -> None:
    assert tuple(bmu_moco.VARIANTS) == VARIANTS


def test_defaults_are_the_papers() -> None:
    config = find_method("bmu_moco").load().Config()
    assert (config.temperature, config.m, config.m_hat, config.queue_size) == (0.07, 0.99, 0.99, 1440)
    assert config.variant == "full"
