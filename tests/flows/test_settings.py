"""Settings: layers, complaints that help, environment."""

from pathlib import Path

import pytest

from components.errors import ConfigError
from flows.settings import PROFILES, load_settings, merge


def write(folder: Path, text: str) -> Path:
    path = folder / "nightshift.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_is_valid(profile: str, tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, ""), profile=profile, environ={})
    assert settings.profile == profile
    assert settings.home.is_absolute()


@pytest.mark.parametrize("recipe", [path.stem for path in Path("flows/recipes").glob("*.toml")])
def test_every_recipe_is_valid(recipe: str, tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, f'[train]\nrecipe = "{recipe}"\n'), environ={})
    assert settings.train.recipe == recipe
    assert settings.train.rl.credit


def test_the_users_file_wins_over_the_profile_and_an_override_over_both(tmp_path: Path) -> None:
    path = write(tmp_path, 'profile = "quick"\n[day]\ncustomers = 5\n')
    assert load_settings(path, environ={}).day.customers == 5
    assert load_settings(path, overrides=("day.customers=9",), environ={}).day.customers == 9
    assert load_settings(path, environ={}).evaluation.tasks == 40


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[trian]\nx = 1", "unknown setting 'trian'. Did you mean 'train'?"),
        ("[train.sft]\nepoch = 1", "unknown setting 'train.sft.epoch'. Did you mean 'epochs'?"),
        ("[gate]\nnmae = 'x'", "unknown setting 'gate.nmae'. Did you mean 'name'?"),
        ("[[train.rl.credit]]\nnam = 'x'", "Did you mean 'name'?"),
        ("[day]\ncustomers = 'many'", "setting 'day.customers'"),
        ("[day]\ncustomers = 0", "setting 'day.customers'"),
        ("agent = 'Help Desk'", "setting 'agent'"),
        ("profile = 'cpuu'", "no profile named 'cpuu'. Did you mean 'cpu'?"),
        ("[train]\nrecipe = 'gpro'", "no recipe named 'gpro'. Did you mean 'grpo'?"),
        ("[schedule]\ntimezone = 'Europe/Berln'", "setting 'schedule.timezone'"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_named(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text), environ={})
    assert complaint in str(caught.value)


def test_a_missing_file_and_a_bare_override_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read settings file"):
        load_settings(tmp_path / "none.toml", environ={})
    with pytest.raises(ConfigError, match=r"section\.key=value"):
        load_settings(overrides=("day.customers",), environ={})


def test_the_environment_says_where_things_are(tmp_path: Path) -> None:
    environ = {"NIGHTSHIFT_HOME": str(tmp_path), "NIGHTSHIFT_DATABASE_URL": "postgresql://x"}
    settings = load_settings(write(tmp_path, ""), environ=environ)
    assert settings.home == tmp_path
    assert settings.store.database_url == "postgresql://x"


def test_an_environment_can_be_switched_off(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, ""), environ={}).environment is not None
    assert load_settings(write(tmp_path, "environment = false"), environ={}).environment is None
    given = load_settings(write(tmp_path, ""), overrides=("environment=false",), environ={})
    assert given.environment is None
    with pytest.raises(ConfigError, match="setting 'environment'"):
        load_settings(write(tmp_path, "environment = true"), environ={})


def test_merge_does_not_touch_its_arguments() -> None:
    low, high = {"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}
    assert merge(low, high) == {"a": {"b": 3, "c": 2}}
    assert low == {"a": {"b": 1, "c": 2}}
