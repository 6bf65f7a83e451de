"""Experiment files and --set are text of others: read safely, refused in one line."""

import time
from pathlib import Path

import pytest

from kinoray.config import names_of
from kinoray.errors import UsageError
from kinoray.runs.experiment_file import merged, parse_grid, parse_settings, read_experiment
from kinoray.runs.request import RunRequest


def test_yaml_and_toml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("method: bmu_moco\nseeds: 3\nm_hat: 0.95\n")
    (tmp_path / "a.toml").write_text('method = "bmu_moco"\nseeds = 3\nm_hat = 0.95\n')
    expected = ({"method": "bmu_moco", "seeds": 3}, {"m_hat": 0.95})
    assert read_experiment(tmp_path / "a.yaml") == read_experiment(tmp_path / "a.toml") == expected


def test_all_options_of_a_run_are_options_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("method: m\nwatch: 50\nper-worker: {CPU: 4, GPU: 1}\ncopy_to: s3://b/runs\n")
    options, settings = read_experiment(tmp_path / "a.yaml")
    assert settings == {} and set(options) <= set(names_of(RunRequest))
    assert options["watch"] == 50 and options["per_worker"] == {"CPU": 4, "GPU": 1}


def test_an_alias_bomb_is_refused_at_once(tmp_path: Path) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 30))
    (tmp_path / "bomb.yaml").write_text("l0: &l0 lol\n" + levels)
    start = time.process_time()
    with pytest.raises(UsageError, match="line 2: aliases"):
        read_experiment(tmp_path / "bomb.yaml")
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: 3\nseeds: 4\n", "line 2: 'seeds' stands twice"),
        ("recipe: {epochs: 1, epochs: 2}\n", "'epochs' stands twice"),
        ("- a\n- b\n", "`name: value`"),
        ("bmu_moco\n", "`name: value`"),
        ("a: !!python/object/apply:os.system [true]\n", "could not determine a constructor"),
        ("a: [1\n", "line 2"),
        ("? [a, b]\n: 1\n", "plain word"),
        ("1: 2\n", "`name: value`"),
        ("seeds: many\n", "`seeds` is 'many'"),
        ("seed: -1\n", "`seed` is -1"),
        ("smoke: perhaps\n", "`smoke` is 'perhaps'"),
        ("stream: [a, b]\n", "`stream` is ['a', 'b']: a stream is a name"),
        ("a: " + "[" * 5000, "a.yaml: "),
        ("a: " + "x" * 200_000, "at most"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_experiment(file)
    assert message in str(caught.value) and "\n" not in str(caught.value) and "a.yaml" in str(caught.value)


def test_a_number_with_an_exponent_alone_is_a_number() -> None:
    assert parse_settings(["a=1e-4", "b=-2E3", "c=1e", "d='1e-4'"]) == {"a": 1e-4, "b": -2e3, "c": "1e", "d": "1e-4"}


def test_settings_have_the_types_of_yaml_and_the_later_wins() -> None:
    settings = parse_settings(["m=0.9", "variant=local", "jitter=[0, 0, 0, 0]", "m=0.5", "note=a=b"])
    assert settings == {"m": 0.5, "variant": "local", "jitter": [0, 0, 0, 0], "note": "a=b"}


def test_several_values_are_every_combination_and_one_with_a_comma_is_quoted() -> None:
    grid = parse_grid(["m=0.9,1e-4", "variant=local", "n=1,2", "word='a,b'", "both=[3, 4]"])
    rest = {"variant": "local", "word": "a,b", "both": [3, 4]}
    assert grid == [{"m": m, "n": n} | rest for m in (0.9, 1e-4) for n in (1, 2)]
    assert parse_grid([]) == [{}]
    assert parse_grid(["m=1,2", "m=3"]) == [{"m": 3}], "the later wins"
    with pytest.raises(UsageError, match="must be name=value"):
        parse_grid(["m"])


def test_not_given_hides_nothing() -> None:
    assert merged({"seed": 1, "joint": True}, {"seed": None, "joint": False}) == {"seed": 1, "joint": False}
