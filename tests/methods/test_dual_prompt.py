"""DualPrompt beside its equations: which prefixes which blocks get, whose key is found, what trains and what rests."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.random_numbers import drawn

from kinoray.backbones import load_backbone
from kinoray.backbones.prompts import prefixed
from kinoray.methods.dual_prompt import Config, Method
from kinoray.testing.engine import first_batch, fresh_session, one_step, spec_of
from kinoray.testing.small_stream import suited

CLIPS = drawn(3, 2, 3, 32, 32)


def task(index: int) -> Any:
    return SimpleNamespace(index=index)


def made(backbone: str = "tiny-clip", tasks: int = 3, **settings: object) -> Method:
    return Method(Config(**settings), load_backbone(backbone), tasks).eval()  # type: ignore[arg-type]


@pytest.mark.parametrize(("backbone", "general", "special"), [("tiny-clip", 2, 3), ("tiny", 0, 2)])
def test_the_first_blocks_have_g_prompts_and_the_next_ones_e_prompts(backbone, general, special) -> None:
    online = made(backbone).online
    assert (len(online.general), len(online.special[0]), len(online.attentions)) == (
        general,
        special,
        general + special,
    )
    blocks = online.towers.vision_blocks
    assert [id(a) for a in online.attentions] == [id(m) for b in blocks[:5] for m in b.children() if hasattr(m, "own")]


@torch.no_grad()
def test_a_clip_gets_the_prompts_of_the_task_whose_key_is_nearest_among_those_seen() -> None:
    method = made()
    online = method.online
    assert torch.equal(method.embed_video(CLIPS, 0), load_backbone("tiny-clip").eval().embed_video(CLIPS)), "zero-shot"
    queries = online.query(CLIPS)
    online.keys[2].copy_(queries[0] * 3)
    online.keys[1].copy_(queries[1] - 0.1 * queries[0])
    online.keys[0].copy_(-queries.sum(dim=0))
    for begun, wanted in ((2, 1), (3, 2)):
        method.begin_task(task(begun - 1))
        cosines = [[float(q @ k / k.norm()) for k in [*online.keys][:begun]] for q in queries]
        chosen = online.task_of(queries).tolist()
        assert chosen == [row.index(max(row)) for row in cosines] and chosen[0] == wanted
    for clip, number in enumerate(chosen):
        one = CLIPS[clip : clip + 1]
        rows = [*online.general, *online.special[number]]
        with prefixed(online.attentions, [(row[:1], row[1:]) for row in rows]):
            alone = online.towers.embed_video(one)
        assert torch.allclose(method.embed_video(CLIPS, 0)[clip], alone[0], atol=1e-5)


def test_the_loss_is_the_contrast_less_the_weighted_match_with_the_tasks_own_key(micro, tmp_path) -> None:
    session = fresh_session(spec_of("dual_prompt", suited("dual_prompt", micro), tmp_path))
    _, batch = first_batch(session)
    method = session.method
    output = method.loss(batch)
    with torch.no_grad():
        key, queries = method.online.keys[0], method.online.query(batch.video)
        cosines = [float(q @ key / (q.norm() * key.norm())) for q in queries]
    assert -output.log["loss/match"].item() == pytest.approx(sum(cosines) / len(cosines), rel=1e-4)
    contrast = (output.log["loss/text_to_video"] + output.log["loss/video_to_text"]) / 2
    assert output.objectives.item() == pytest.approx(contrast.item() - sum(cosines) / len(cosines), rel=1e-4)


def test_a_task_begins_with_the_last_ones_prompt_and_trains_its_own_and_the_shared_one(micro, tmp_path) -> None:
    for copies in (True, False):
        method = made(from_previous=copies)
        before = [p.detach().clone() for p in method.online.special]
        method.begin_task(task(1))
        assert torch.equal(method.online.special[1], before[0] if copies else before[1])
        assert not torch.equal(method.online.keys[1], method.online.keys[0])
    (group,) = method.param_groups().values()
    assert set(group.params) == {"online.general", "online.special.1", "online.keys.1"}
    step = one_step(spec_of("dual_prompt", suited("dual_prompt", micro), tmp_path))
    changed = {name for name in step["before"] if not torch.equal(step["before"][name], step["after"][name])}
    assert changed == {"online.special.0", "online.keys.0"}, "two blocks alone: no G-prompts"
