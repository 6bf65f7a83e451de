"""Sprites, of tiny stand-ins in the layout of each package: what is read of scripts and sheets, and how it is drawn."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from kinoray.datasets.packages import Drawn, concept_of, find_family
from kinoray.datasets.packages.games import flare, fluent, wesnoth, widelands, wml
from kinoray.datasets.packages.games.names import concept, drawn_by, with_article
from kinoray.datasets.packages.games.pictures import GREY, MAX_FRAMES, SIZE_PX, Piece, draw, open_picture
from kinoray.errors import UsageError

REAL = Path(os.environ.get("KINORAY_DATA", "/nowhere")) / "sprites" / "unpacked"
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
COLOURS = (RED, GREEN, BLUE, WHITE)


def sheet(path: Path, columns: int, rows: int, colours=COLOURS, side: int = 10) -> None:
    """Squares in a row-wise order on nothing, each with a border that is clear; its bytes differ from file to file."""
    pixels = np.zeros((rows * side, columns * side, 4), np.uint8)
    for number, colour in enumerate(colours):
        y, x = number // columns * side, number % columns * side
        pixels[y + 1 : y + side - 1, x + 1 : x + side - 1] = (*colour, 255)
    path.parent.mkdir(parents=True, exist_ok=True)
    note = PngInfo()
    note.add_text("Title", str(path))
    Image.fromarray(pixels).save(path, pnginfo=note)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def middle(clip: Drawn) -> list[tuple[int, ...]]:
    """The colour in the middle of each frame."""
    return [tuple(frame[SIZE_PX // 2, SIZE_PX // 2].tolist()) for frame in clip.frames()[0]]


def by_caption(clips) -> dict[str, Drawn]:
    return {clip.captions[0]: clip for clip in clips}


LUA = """
push_textdomain("tribes")
os.exit(1) -- nobody runs this
wl.Descriptions():new_worker_type {{
   name = "{name}", -- descname = "no",
   descname = pgettext("{name}", "{title}"),
   icon = dirname .. "menu.png",
   buildcost = {{ felling_ax = 1 }},
   spritesheets = {{
      idle = {{ sound_effect = {{ path = "x", priority = "0.01%" }}, fps = 5, frames = 4, rows = 2, columns = 2,
         hotspot = {{ 5, 21 }} }},
      walk = {{ frames = 4, rows = 2, columns = 2, directional = true, hotspot = {{ 1, 2 }} }},
      walkload = {{ basename = "walk", frames = 4, rows = 2, columns = 2, directional = true }},
      short = {{ frames = 3, rows = 2, columns = 2 }},
      atk_ok_1_e = {{ frames = 4, rows = 2, columns = 2 }},
      gone = {{ frames = 4, rows = 2, columns = 2 }},
   }}
}}
"""


@pytest.fixture
def widelands_folder(tmp_path: Path) -> Path:
    workers = tmp_path / widelands.DATA / "tribes/workers"
    for tribe, scales in (("barbarians", ("0.5", "1", "2", "4")), ("empire", ("1",))):
        home = workers / tribe / "lumberjack"
        write(home / "init.lua", LUA.format(name=f"{tribe}_worker", title="Chief Lumberjack"))
        for scale in scales:
            for stem in ("idle", "short", "atk_ok_1_e", *(f"walk_{turn}" for turn in widelands.TURNS)):
                sheet(home / f"{stem}_{scale}.png", 2, 2, side=round(10 * float(scale)))
    return tmp_path


def test_widelands_sheets_become_clips_with_names_actions_and_directions(widelands_folder: Path) -> None:
    clips = list(widelands.clips(widelands_folder))
    said = by_caption(clips)
    large = said["a barbarian chief lumberjack walking to the north east"]
    assert large.id == "lumberjack/widelands-large.barbarian-chief-lumberjack.walk-ne"
    assert (large.label, large.task) == ("lumberjack walking", "widelands-large")
    small = said["an imperial chief lumberjack standing"]
    assert (small.task, concept_of(small.id)) == ("widelands-small", "lumberjack")
    assert "a barbarian chief lumberjack hitting to the east" in said
    assert len(clips) == 2 * (1 + 6 + widelands.LOADED_TURNS + 1)
    assert not [caption for caption in said if "short" in caption or "gone" in caption]
    frames, fps = small.frames()
    assert (frames.shape, frames.dtype, fps) == ((4, SIZE_PX, SIZE_PX, 3), np.uint8, 5)
    assert middle(small) == list(COLOURS)
    assert large.frames()[1] == widelands.FPS
    assert np.abs(frames[:, 0, 0].astype(int) - GREY).max() < 4


def test_widelands_takes_the_largest_scale_that_is_not_too_large(widelands_folder: Path, monkeypatch) -> None:
    def file_of(clip: Drawn) -> str:
        return clip.frames.args[1][0][0].file  # type: ignore[attr-defined]

    wanted = "a barbarian chief lumberjack standing"
    assert file_of(by_caption(widelands.clips(widelands_folder))[wanted]).endswith("idle_4.png")
    monkeypatch.setattr(widelands, "MAX_CELL_PX", 20)
    assert file_of(by_caption(widelands.clips(widelands_folder))[wanted]).endswith("idle_2.png")


def test_lua_tables_are_read_as_text() -> None:
    text = 'x = { a = 1, b = "two, {", c = { d = true, { 3 }, "e" }, f = dirname .. "g", [1] = 2, h = 0.5 } y = 1'
    entries, end = widelands.lua_table(text, text.index("{") + 1)
    assert {key: entries[key] for key in "abch"} == {"a": "1", "b": "two, {", "c": {"d": "true"}, "h": "0.5"}
    assert text[end:] == " y = 1"
    assert widelands.lua_table("a = {", 0)[0] == {"a": {}}


def flare_file(image: str, actions: dict[str, tuple[str, int, int]]) -> str:
    """actions: name -> (type, frames, directions); frame n of any direction is cell n of a row of 10 px squares."""
    lines = [f"image=images/{image}.png", "# frame=0,0,99,99,99,99,0,0"]
    for action, (kind, frames, turns) in actions.items():
        lines += ["", f"[{action}]", f"frames={frames}", "duration=400ms", f"type={kind}"]
        lines += [f"frame={n},{turn},{n * 10},0,10,10,5,5" for n in range(frames) for turn in range(turns)]
    return "\n".join(lines)


@pytest.fixture
def flare_folder(tmp_path: Path) -> Path:
    core = tmp_path / flare.CORE
    order = "main,feet,legs,hands,chest,head,off"
    write(core / "engine/hero_layers.txt", "# order\n" + "\n".join(f"layer={n},{order}" for n in range(8)))
    write(
        core / "animations/enemies/goblin_elite.txt",
        flare_file("goblin", {"stance": ("back_forth", 4, 8), "hit": ("play_once", 2, 8)}),
    )
    write(core / "animations/loot/coins5.txt", flare_file("goblin", {"power": ("play_once", 4, 1)}))
    write(core / "animations/powers/unpacked.txt", "image=images/goblin.png\n[power]\nframes=4\nduration=1s\n")
    sheet(core / "images/goblin.png", 4, 1)
    # Weapon and trousers lie over one another: red below, blue on the left half above it.
    avatar = core / "animations/avatar/female"
    write(avatar / "dagger.txt", flare_file("dagger", {"swing": ("play_once", 4, 8)}))
    sheet(core / "images/dagger.png", 4, 1, [RED] * 4)
    sheet(core / "images/legs.png", 4, 1, [BLUE] * 4)
    with Image.open(core / "images/legs.png") as picture:
        pixels = np.array(picture)
    for left in range(0, 40, 10):
        pixels[:, left + 5 : left + 10] = 0
    Image.fromarray(pixels).save(core / "images/legs.png")
    for armor in flare.ARMOR.values():
        write(avatar / f"{armor[1]}.txt", flare_file("legs", {"swing": ("play_once", 4, 8)}))
    return tmp_path


def test_flare_monsters_play_back_and_forth_in_some_directions(flare_folder: Path) -> None:
    clips = [clip for clip in flare.clips(flare_folder) if "goblin" in clip.id]
    assert len(clips) == flare.MONSTER_TURNS  # of eight; what has two frames is left out
    assert {clip.label for clip in clips} == {"goblin standing"}
    assert all(clip.captions[0].startswith("an elite goblin standing to the ") for clip in clips)
    assert all(concept_of(clip.id) == "goblin" and clip.task == "flare" for clip in clips)
    assert middle(clips[0]) == [RED, GREEN, BLUE, WHITE, BLUE, GREEN]
    assert clips[0].frames()[1] == pytest.approx(10)
    assert middle(by_caption(flare.clips(flare_folder))["coins tumbling through the air"]) == list(COLOURS)


def test_flare_heroes_are_layers_in_the_order_of_the_direction(flare_folder: Path) -> None:
    clips = [clip for clip in flare.clips(flare_folder) if concept_of(clip.id) == "dagger"]
    assert len(clips) == flare.HERO_TURNS
    for clip in clips:
        assert clip.captions[0].startswith("a woman in ") and " armor swinging a dagger to the " in clip.captions[0]
        frames, _ = clip.frames()
        left, right = frames[0, SIZE_PX // 2, SIZE_PX // 4], frames[0, SIZE_PX // 2, 3 * SIZE_PX // 4]
        assert (tuple(left.tolist()), tuple(right.tolist())) == (BLUE, RED)


WML = """
#textdomain wesnoth-units
#define BASE
units/x#enddef
[unit_type]
    id=Spearman
    name= _ "Goblin Spearman"
    # [death]
    description= _ "Armed with [spears] and ""stones"",
they run=fast."
    [attack]
        name=spear
    [/attack]
    [attack_anim]
        [filter_attack]
            name=spear
        [/filter_attack]
        direction=s
        [missile_frame]
            image="projectiles/spear.png"
        [/missile_frame]
        [frame]
            image="units/x-[1~4].png:[75*2,100,130]"
        [/frame]
        {SOUND:HIT spear.ogg {SOUND_LIST:MISS} -100}
    [/attack_anim]
    [standing_anim]
        [if]
            direction=s,se,sw
            [frame]
                image="units/x-[4~1].png:50"
            [/frame]
        [/if]
        [else]
            direction=n,ne,nw
            [frame]
                image="units/x-[1,2,1,3,4].png:50"
            [/frame]
        [/else]
    [/standing_anim]
    {DEATH_ANIM {BASE} "dying slowly" (100)}
    [idle_anim]
        [frame]
            image="units/../../../x-[1~4].png"
        [/frame]
    [/idle_anim]
    [female]
        name= _ "female^Spearwoman"
        [death]
            [frame]
                image="units/x-[1~4].png"
                duration=200
            [/frame]
        [/death]
    [/female]
[/unit_type]
"""
MACROS = """
#define DEATH_ANIM PATH WHY MS
#arg UNUSED
#endarg
    [death]
        [frame]
            image="{PATH}-[1~3,3,4].png:{MS}"
        [/frame]
    [/death]
#enddef
"""


@pytest.fixture
def wesnoth_folder(tmp_path: Path) -> Path:
    core = tmp_path / wesnoth.CORE
    write(core / "macros/animations.cfg", MACROS)
    write(core / "units/goblins/Spearman.cfg", WML)
    for number, colour in enumerate(COLOURS, start=1):
        sheet(core / f"images/units/x-{number}.png", 1, 1, [colour], side=10 + 2 * number)
    return tmp_path


def test_wesnoth_animations_become_clips_with_their_times(wesnoth_folder: Path) -> None:
    said = by_caption(wesnoth.clips(wesnoth_folder))
    assert list(said) == [
        "a goblin spearman attacking with a spear to the south",
        "a goblin spearman standing to the south",
        "a goblin spearman standing to the north",
        "a goblin spearman dying",
        "a spearwoman dying",
    ]
    assert {concept_of(clip.id) for clip in said.values()} == {"spearman"}
    attack = said["a goblin spearman attacking with a spear to the south"]
    assert attack.id == "spearman/wesnoth.goblin-spearman.attack-spear-s"
    assert attack.frames()[1] == 20
    assert middle(attack) == [RED] * 2 + [GREEN] * 2 + [BLUE] * 2 + [WHITE] * 3
    assert middle(said["a goblin spearman standing to the south"]) == [WHITE, BLUE, GREEN, RED]
    assert middle(said["a goblin spearman standing to the north"]) == [RED, GREEN, RED, BLUE, WHITE]
    assert middle(said["a goblin spearman dying"])[::2] == [RED, GREEN, BLUE, BLUE, WHITE]
    assert len(middle(said["a spearwoman dying"])) == 16


def test_wml_lists_are_spread() -> None:
    assert wml.spread("1~3,2") == ["1", "2", "3", "2"]
    assert wml.spread("75*2,100") == ["75", "75", "100"]
    assert wml.spread("08~10") == ["08", "09", "10"]
    assert wml.spread("ranged, ranged2") == ["ranged", "ranged2"]
    assert len(wml.spread("1~999999999")) <= wml.MAX_RUN and len(wml.spread("1*999999999")) <= wml.MAX_RUN


def test_wml_macros_that_call_themselves_end() -> None:
    unit = wml.parse("{GROW}[unit_type]\nname=x\n[/unit_type]", "#define GROW\n{GROW}{GROW}{GROW}#enddef\n")
    assert [tag.values for tag in unit.named("unit_type")] == [{"name": "x"}]
    assert wml.parse("{OPEN [a]\nb=c").tags == []


@pytest.fixture
def fluent_folder(tmp_path: Path) -> Path:
    assets = tmp_path / fluent.ASSETS
    assets.mkdir(parents=True)
    names = ("1f3c3-1f3fb-200d-2640-fe0f", "1f468-200d-1f33e", "1f431", "1f468-200d-1f466-200d-1f466", "1f468-1f9ff")
    for name in names:
        pictures = [Image.new("RGBA", (20, 20), colour) for colour in COLOURS]
        pictures[0].save(assets / f"{name}.webp", save_all=True, append_images=pictures[1:], duration=50, lossless=True)
    Image.new("RGBA", (20, 20), RED).save(assets / "1f436.webp")
    return tmp_path


def test_fluent_pictures_that_move_are_named_by_their_code_points(fluent_folder: Path) -> None:
    said = by_caption(fluent.clips(fluent_folder))
    assert list(said) == [
        "a female runner with light skin",
        "a cat face",
        "a male farmer",
        "a family of a man and two boys",
    ]
    assert [concept_of(clip.id) for clip in said.values()] == ["runner", "cat", "farmer", "family"]
    assert middle(said["a cat face"]) == list(COLOURS)
    assert said["a cat face"].frames()[1] == pytest.approx(20)


def test_variants_of_a_name_are_one_concept() -> None:
    same = ("Spearman", "Goblin Spearman", "female spearman", "Elite Spearman (Old)", "spearmans")
    assert {concept(name) for name in same} == {"spearman"}
    assert concept("Lumberjack’s House") == concept("lumberjack's house") == "lumberjack house"
    assert concept("goblin") == "goblin" and concept("master") == "master"
    assert concept("cloud with rain") == "cloud" and concept("strawberries") == "strawberry"
    assert [with_article(name) for name in ("elf", "boy", "eyes", "cactus")] == ["an elf", "a boy", "eyes", "a cactus"]


def test_what_a_text_draws_stays_in_order() -> None:
    drawn = [drawn_by(f"text {n}", range(8), 3) for n in range(50)]
    assert drawn == [drawn_by(f"text {n}", range(8), 3) for n in range(50)]
    assert all(len(three) == 3 and three == sorted(three) for three in drawn)
    assert {value for three in drawn for value in three} == set(range(8))


def test_long_drawings_keep_their_time(tmp_path: Path) -> None:
    sheet(tmp_path / "x.png", 1, 1)
    frames = [(Piece("x.png", (0, 0, 10, 10), (number % 2, 0)),) for number in range(MAX_FRAMES + 1)]
    drawn, fps = draw(tmp_path, frames, 20.0)
    assert len(drawn) / fps == pytest.approx(len(frames) / 20, rel=0.05) and len(drawn) <= MAX_FRAMES


def test_a_file_outside_the_folder_or_that_is_no_picture_is_refused(tmp_path: Path) -> None:
    sheet(tmp_path / "outside.png", 1, 1)
    inside = tmp_path / "inside"
    write(inside / "text.png", "no picture")
    (inside / "link.png").symlink_to(tmp_path / "outside.png")
    for file, says in (
        ("../outside.png", "points outside the folder"),
        ("link.png", "points outside the folder"),
        ("text.png", "picture"),
        ("no", "picture"),
    ):
        with pytest.raises(UsageError, match=says):
            open_picture(inside, file)


def test_a_picture_with_too_many_pixels_is_refused(tmp_path: Path, monkeypatch) -> None:
    sheet(tmp_path / "x.png", 1, 1)
    monkeypatch.setattr("kinoray.datasets.packages.games.pictures.MAX_PIXELS", 99)
    with pytest.raises(UsageError, match="99 pixels"):
        open_picture(tmp_path, "x.png")


@pytest.fixture
def everything(widelands_folder, flare_folder, wesnoth_folder, fluent_folder) -> dict[str, Path]:
    """All stand-ins lie in one folder."""
    return {package.name: widelands_folder for package in find_family("sprites").PACKAGES}


def check_family(clips: list[Drawn]) -> None:
    family = find_family("sprites")
    assert len({clip.id for clip in clips}) == len({clip.captions for clip in clips}) == len(clips)
    assert list(dict.fromkeys(clip.task for clip in clips)) == list(family.PARTS)  # type: ignore[attr-defined]
    assert all(clip.id.count("/") == 1 and clip.id.isascii() for clip in clips)


def test_the_family_is_its_parts_in_order_and_the_same_twice(everything: dict[str, Path]) -> None:
    clips = list(find_family("sprites").clips(everything))
    check_family(clips)
    assert [clip.id for clip in clips] == [clip.id for clip in find_family("sprites").clips(everything)]
    captions = set(by_caption(clips))
    assert "a barbarian chief lumberjack walking to the east" in captions
    assert not {caption for caption in captions if "with a load" in caption}  # the same pictures
    for clip in clips:
        frames, fps = pickle.loads(pickle.dumps(clip.frames))()
        assert frames.shape[1:] == (SIZE_PX, SIZE_PX, 3) and frames.dtype == np.uint8 and fps > 0


def test_a_drawing_under_two_names_is_taken_once(everything: dict[str, Path]) -> None:
    folder = next(iter(everything.values()))
    before = by_caption(find_family("sprites").clips(everything))
    workers = folder / widelands.DATA / "tribes/workers"
    (workers / "empire/lumberjack/idle_1.png").write_bytes((workers / "barbarians/lumberjack/idle_4.png").read_bytes())
    after = by_caption(find_family("sprites").clips(everything))
    assert set(before) - set(after) == {"an imperial chief lumberjack standing"}


@pytest.mark.skipif(not REAL.is_dir(), reason="KINORAY_DATA has no sprites; `kinoray data fetch sprites`")
def test_the_real_packages_hold_what_is_known_of_them() -> None:
    family = find_family("sprites")
    clips = list(family.clips({package.name: REAL / package.name.replace("/", "-") for package in family.PACKAGES}))
    check_family(clips)
    assert len(clips) == 3698 and len({concept_of(clip.id) for clip in clips}) == 572
