"""The paper's hyper-parameters against its text, the rules of `suggest_from_adamw`, and the page that shows both."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adan import Adan
from adan.hyperparameters import Recipe, recipes, scaled_lr
from adan.suggestion import Suggestion, suggest_from_adamw

# On a busy machine one example may take long; that is no failure.
patient = settings(deadline=None)

PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"

# (lr, (β1, β2, β3), weight decay, clip, batch, warm-up epochs) in the paper's own symbols; None: not stated.
DEFAULT = (0.02, 0.08, 0.01)
PAPER = {
    "default": (None, DEFAULT, 0.02, None, None, None),
    "resnet": (1.5e-2, DEFAULT, 0.02, 5.0, 2048, None),
    "convnext": (1.5e-2, DEFAULT, 0.02, 0.0, 2048, None),
    "vit": (1.5e-2, DEFAULT, 0.02, 0.0, 2048, None),
    "swin": (1.5e-2, DEFAULT, 0.02, 0.0, 2048, None),
    "mae-pretrain": (2.0e-3, (0.02, 0.08, 0.1), 0.02, 0.0, 4096, None),
    "mae-finetune": (1.5e-2, DEFAULT, 0.02, 0.0, None, None),
    "vit-large-batch-1k": (6.25e-3 * 2, DEFAULT, 0.02, 0.0, 1024, 20),
    "vit-large-batch-2k": (6.25e-3 * 8**0.5, DEFAULT, 0.02, 0.0, 2048, 40),
    "vit-large-batch-4k": (6.25e-3 * 4, DEFAULT, 0.02, 0.0, 4096, 60),
    "vit-large-batch-8k": (6.25e-3 * 32**0.5, DEFAULT, 0.02, 0.0, 8192, 100),
    "vit-large-batch-16k": (6.25e-3 * 8, DEFAULT, 0.02, 0.0, 16384, 160),
    "vit-large-batch-32k": (6.25e-3 * 128**0.5, DEFAULT, 0.02, 0.0, 32768, 200),
    "lstm": (1e-2, DEFAULT, 0.02, None, None, None),
    "bert-pretrain": (1e-3, DEFAULT, 0.02, None, None, None),
    "bert-finetune": (2e-5, (0.02, 0.01, 0.01), 0.01, None, 16, None),
    "transformer-xl": (1e-3, (0.1, 0.1, 0.001), 0.02, None, None, None),
    "moe": (None, (0.06, 0.08, 0.05), 0.02, None, None, None),
    "rl-ppo": (3e-4, DEFAULT, 0.0, None, None, None),
}


# --- scaled_lr ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "lr"), [(256, 6.25e-3), (1024, 1.25e-2), (16384, 5e-2)])
def test_scaled_lr_is_the_papers(batch_size: int, lr: float) -> None:
    assert scaled_lr(batch_size) == pytest.approx(lr, rel=1e-12)


def test_scaled_lr_uses_its_base() -> None:
    assert scaled_lr(400, base_lr=0.1, base_batch_size=100) == pytest.approx(0.2)


@patient
@given(st.integers(1, 10**6), st.integers(1, 10**4), st.floats(1e-6, 1.0))
def test_scaled_lr_squared_is_linear_in_the_batch(batch_size: int, base: int, lr: float) -> None:
    assert scaled_lr(base, lr, base) == lr
    assert scaled_lr(4 * batch_size, lr, base) == pytest.approx(2 * scaled_lr(batch_size, lr, base), rel=1e-12)


@pytest.mark.parametrize("name", ["batch_size", "base_batch_size", "base_lr"])
@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-8, ValueError), ("8", TypeError), (None, TypeError), (True, TypeError)]
)
def test_scaled_lr_refuses(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"{name} must be .*, got {re.escape(repr(value))}"):
        scaled_lr(**{"batch_size": 256, name: value})


def test_scaled_lr_refuses_fractions_of_samples_and_infinite_rates() -> None:
    with pytest.raises(TypeError, match=r"batch_size must be an integer, got 256\.5"):
        scaled_lr(256.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="base_lr must be finite and above 0, got inf"):
        scaled_lr(256, base_lr=math.inf)


# --- recipes --------------------------------------------------------------------------------------------------------


def test_every_setting_of_the_paper_is_there() -> None:
    assert set(recipes) == set(PAPER)
    assert len(recipes) == len(PAPER)


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_what_the_paper_states(name: str) -> None:
    lr, beta, weight_decay, clip, batch_size, warmup = PAPER[name]
    recipe = recipes[name]
    assert recipe.lr == (None if lr is None else pytest.approx(lr, rel=1e-12))
    assert recipe.betas == pytest.approx([1 - b for b in beta], rel=1e-12)
    assert recipe.weight_decay == weight_decay
    assert recipe.max_grad_norm == clip
    assert (recipe.batch_size, recipe.warmup_epochs) == (batch_size, warmup)
    assert recipe.eps is None
    assert recipe.no_prox is False
    assert recipe.source


@pytest.mark.parametrize("name", PAPER)
def test_what_is_not_stated_is_said(name: str) -> None:
    recipe = recipes[name]
    if recipe.lr is None or recipe.batch_size is None or recipe.warmup_epochs is None:
        assert re.search(r"not (stated|give)|without saying", recipe.notes)


def test_the_sweep_of_bert_fine_tuning() -> None:
    assert recipes["bert-finetune"].lr_sweep == (2e-5, 4e-5)
    assert all(not recipe.lr_sweep or recipe.lr_sweep[0] == recipe.lr for recipe in recipes.values())


@pytest.mark.parametrize("name", PAPER)
def test_adan_takes_the_options_of_a_recipe(name: str) -> None:
    recipe = recipes[name]
    options = recipe.options()
    group = Adan([torch.nn.Parameter(torch.ones(2))], **options).param_groups[0]
    for option in ("lr", "betas", "eps", "weight_decay", "max_grad_norm", "no_prox"):
        if getattr(recipe, option) is None:
            assert option not in options
        else:
            assert group[option] == getattr(recipe, option)


def test_options_carry_every_field_of_the_optimizer() -> None:
    recipe = Recipe(
        lr=1.0, betas=(0.1, 0.2, 0.3), source="", weight_decay=2.0, eps=3.0, max_grad_norm=4.0, no_prox=True
    )
    assert recipe.options() == {
        "lr": 1.0,
        "betas": (0.1, 0.2, 0.3),
        "eps": 3.0,
        "weight_decay": 2.0,
        "max_grad_norm": 4.0,
        "no_prox": True,
    }
    assert "weight_decay" not in dataclasses.replace(recipe, weight_decay=None).options()


def test_recipes_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        recipes["vit"] = recipes["swin"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        recipes["vit"].lr = 1.0  # type: ignore[misc]
    recipes["vit"].options()["lr"] = 1.0
    assert recipes["vit"].options()["lr"] == 1.5e-2


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(KeyError) as error:
        recipes["gpt-5"]
    assert "gpt-5" in str(error.value)
    assert all(name in str(error.value) for name in recipes)
    assert recipes.get("gpt-5") is None
    assert "gpt-5" not in recipes


def test_repr_lists_the_names() -> None:
    assert all(name in repr(recipes) for name in recipes)


# --- suggest_from_adamw: the values ---------------------------------------------------------------------------------


def test_the_measured_setting_of_a_short_language_run() -> None:
    s = suggest_from_adamw(2e-3, weight_decay=0.1, total_steps=2_000, task="lm")
    assert (s.lr, s.betas, s.weight_decay, s.warmup_steps) == (4e-3, (0.9, 0.92, 0.99), 0.04, 100)
    assert [word in " ".join(s.why) for word in ("study gpt", "measured")] == [True, True]


def test_the_measured_setting_of_a_short_vision_run() -> None:
    s = suggest_from_adamw(5e-4, weight_decay=0.05, total_steps=4_375, task="vision", batch_size=256)
    assert (s.lr, s.betas, s.weight_decay) == (pytest.approx(1.414e-3, rel=5e-3), (0.98, 0.92, 0.99), 0.02)


def test_the_papers_setting_of_a_long_vision_run() -> None:
    s = suggest_from_adamw(2e-3, weight_decay=0.05, total_steps=187_500, task="vision", batch_size=2048)
    assert (s.lr, s.betas, s.weight_decay) == (recipes["vit"].lr, recipes["vit"].betas, recipes["vit"].weight_decay)


def test_a_mixture_of_experts_is_a_language_model_with_the_papers_b3() -> None:
    kwargs: dict[str, Any] = {"weight_decay": 0.1, "total_steps": 20_000}
    moe, lm = (suggest_from_adamw(1e-3, **kwargs, task=task) for task in ("moe", "lm"))
    assert moe == dataclasses.replace(lm, betas=(*lm.betas[:2], recipes["moe"].betas[2]), why=moe.why)


def test_the_papers_lr_of_a_long_language_run() -> None:
    s = suggest_from_adamw(2.5e-4, total_steps=100_000, task="lm")
    assert (s.lr, s.betas[0]) == (recipes["transformer-xl"].lr, recipes["transformer-xl"].betas[0])


@pytest.mark.parametrize("total_steps", [500, 500_000, None])
def test_fine_tuning_is_the_papers_at_any_length(total_steps: int | None) -> None:
    s = suggest_from_adamw(1e-5, weight_decay=0.1, warmup_steps=7, total_steps=total_steps, task="finetune")
    assert (s.lr, s.betas, s.weight_decay, s.warmup_steps) == (2e-5, (0.98, 0.99, 0.99), 0.04, 7)
    # OneCycleLR divides by zero where a warm-up has one step.
    assert suggest_from_adamw(1e-5, warmup_steps=1, total_steps=total_steps, task="finetune").warmup_steps == 2


@pytest.mark.parametrize("total_steps", [500, 400_000])
def test_reinforcement_learning_is_the_papers(total_steps: int) -> None:
    s = suggest_from_adamw(3e-4, weight_decay=0.1, total_steps=total_steps, task="rl")
    assert (s.lr, s.betas, s.weight_decay, s.warmup_steps) == (3e-4, (0.98, 0.92, 0.99), 0.0, 0)


@pytest.mark.parametrize(
    ("task", "total_steps", "b1"),
    [
        (None, 100, 0.9),
        (None, 2_000, 0.9),
        (None, round((2_000 * 62_500) ** 0.5), 0.94),
        (None, 62_500, 0.98),
        (None, 10**6, 0.98),
        ("vision", 2_000, 0.9),
        ("vision", round((2_000 * 4_375) ** 0.5), 0.94),
        ("vision", 4_375, 0.98),
        ("lm", 10**6, 0.9),
    ],
)
def test_b1_follows_the_length_of_the_run(task: Any, total_steps: int, b1: float) -> None:
    assert suggest_from_adamw(1e-3, total_steps=total_steps, task=task).betas == (b1, 0.92, 0.99)


@pytest.mark.parametrize(
    ("task", "total_steps", "ratio"),
    [
        ("vision", 100, 2.83),
        ("vision", 4_375, 2.83),
        ("vision", math.isqrt(4_375 * 62_500), (2.83 + 7.5) / 2),
        ("vision", 10**6, 7.5),
        ("lm", 2_000, 2.0),
        ("moe", math.isqrt(2_000 * 100_000), 3.0),
        (None, 10**6, 4.0),
    ],
)
def test_the_ratio_follows_the_length_of_the_run(task: Any, total_steps: int, ratio: float) -> None:
    assert suggest_from_adamw(1e-3, total_steps=total_steps, task=task).lr == pytest.approx(ratio * 1e-3, rel=5e-3)


def test_without_a_length_one_is_assumed() -> None:
    s = suggest_from_adamw(1e-3)
    assert s.why[0].startswith("total_steps = 5,000 (assumption)")
    assert suggest_from_adamw(1e-3, total_steps=5_000) == dataclasses.replace(s, why=s.why[1:])
    assert (
        suggest_from_adamw(1e-3, warmup_steps=1_000).betas[0] == suggest_from_adamw(1e-3, total_steps=10_000).betas[0]
    )


@pytest.mark.parametrize(("first", "b1"), [(0.0, 0.0), (0.5, 0.5), (0.92, 0.92), (0.95, 0.95), (0.99, 0.99)])
def test_adamws_first_beta_is_never_undercut_and_a_small_one_kept(first: float, b1: float) -> None:
    assert suggest_from_adamw(1e-3, total_steps=1_000, betas=(first, 0.999)).betas[0] == b1


def test_a_small_first_beta_is_kept_in_a_long_run_too() -> None:
    assert suggest_from_adamw(1e-3, total_steps=10**6, betas=(0.5, 0.999)).betas[0] == 0.5
    assert suggest_from_adamw(1e-3, total_steps=10**6, betas=(0.9, 0.999)).betas[0] == 0.98


@pytest.mark.parametrize(("second", "b3"), [(0.9, 0.9), (0.95, 0.95), (0.98, 0.99), (0.999, 0.99)])
def test_adamws_second_beta_counts_where_it_is_short(second: float, b3: float) -> None:
    assert suggest_from_adamw(1e-3, total_steps=10**5, betas=(0.9, second)).betas[2] == b3


def test_a_second_beta_below_the_tasks() -> None:
    assert suggest_from_adamw(1e-3, task="moe", betas=(0.9, 0.9)).betas[2] == 0.9
    assert suggest_from_adamw(1e-3, task="lm", total_steps=1_500, betas=(0.9, 0.95)).betas[2] == 0.95


@pytest.mark.parametrize("task", [None, "vision", "lm", "moe", "finetune"])
@patient
@given(weight_decay=st.floats(1e-4, 1.0), total_steps=st.integers(1, 10**6))
def test_the_decay_is_a_share_of_adamws(task: Any, weight_decay: float, total_steps: int) -> None:
    s = suggest_from_adamw(1e-3, weight_decay=weight_decay, total_steps=total_steps, task=task)
    assert s.weight_decay == pytest.approx(0.4 * weight_decay, rel=6e-3)


def test_no_decay_stays_no_decay() -> None:
    assert suggest_from_adamw(1e-3, weight_decay=0, total_steps=10**5, task="vision").weight_decay == 0.0


def test_the_batch_limits_the_lr_of_vision_but_not_below_adamws() -> None:
    kwargs: dict[str, Any] = {"weight_decay": 0.05, "total_steps": 10**5, "warmup_steps": 10, "task": "vision"}
    assert suggest_from_adamw(1e-3, **kwargs).lr == 7.5e-3
    assert suggest_from_adamw(1e-3, **kwargs, batch_size=256).lr == 6.25e-3
    bounded = suggest_from_adamw(2e-2, **kwargs, batch_size=256)
    assert (bounded.lr, bounded.weight_decay, bounded.warmup_steps) == (2e-2, 0.05, 10)


def test_elsewhere_the_batch_changes_only_the_reasons() -> None:
    plain = suggest_from_adamw(1e-3, total_steps=10**5)
    sized = suggest_from_adamw(1e-3, total_steps=10**5, batch_size=64)
    assert sized == dataclasses.replace(plain, why=sized.why)
    assert set(sized.why) > set(plain.why)


@pytest.mark.parametrize(
    ("kwargs", "warmup_steps"),
    [
        ({"total_steps": 100_000}, 5_000),
        ({"total_steps": 10}, 0),
        ({}, 250),
        ({"total_steps": 100_000, "task": "finetune"}, 0),
        ({"total_steps": 100_000, "task": "vision", "warmup_steps": 6_000}, 6_000),
        ({"total_steps": 100_000, "task": "rl"}, 0),
        ({"total_steps": 30, "warmup_steps": 1}, 2),
    ],
)
def test_warm_up(kwargs: dict[str, Any], warmup_steps: int) -> None:
    assert suggest_from_adamw(1e-3, **kwargs).warmup_steps == warmup_steps


@pytest.mark.parametrize("task", [None, "finetune", "rl"])
def test_a_warm_up_of_one_step_is_not_called_kept(task: Any) -> None:
    """OneCycleLR divides by zero there; in a run of two steps, two would be the whole run."""
    for total_steps, warmup_steps in ((2, 0), (3, 2), (10, 2)):
        s = suggest_from_adamw(1e-3, total_steps=total_steps, warmup_steps=1, task=task)
        assert s.warmup_steps == warmup_steps
        (reason,) = (reason for reason in s.why if reason.startswith("warmup_steps"))
        assert reason.startswith(f"warmup_steps = {warmup_steps} (rule of thumb): ")
        assert "AdamW's 1" in reason


def test_eps_is_kept() -> None:
    assert suggest_from_adamw(1e-3, eps=1e-6).options()["eps"] == 1e-6


# --- suggest_from_adamw: the form -----------------------------------------------------------------------------------


@patient
@given(
    lr=st.floats(1e-6, 1.0),
    weight_decay=st.floats(0.0, 1.0),
    betas=st.tuples(st.floats(0.0, 0.9999), st.floats(0.0, 0.9999)),
    total_steps=st.none() | st.integers(1, 10**7),
    task=st.sampled_from([None, "vision", "lm", "moe", "finetune", "rl"]),
    batch_size=st.none() | st.integers(1, 10**5),
)
def test_any_suggestion_is_fit_for_adan_and_explains_itself(total_steps: int | None, **kwargs: Any) -> None:
    s = suggest_from_adamw(total_steps=total_steps, **kwargs)
    Adan([torch.nn.Parameter(torch.ones(2))], **s.options())
    assert s.lr >= kwargs["lr"] * 0.995
    assert 0 <= s.weight_decay <= kwargs["weight_decay"] * 1.005
    assert 0 <= s.warmup_steps < (total_steps or 10**7)
    for reason in s.why:
        assert re.search(r"\((paper|measured|rule of thumb|assumption|kept)\): .*\.$", reason), reason
    decided = [reason.split(" = ")[0] for reason in s.why]
    assert {"lr", "eps", "weight_decay", "warmup_steps"} <= set(decided)
    assert {"b1", "b2", "b3"} <= set(decided)


@patient
@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=2).map(sorted), st.sampled_from([None, "vision", "lm", "rl"])
)
def test_a_longer_run_never_gets_a_smaller_b1_or_lr(steps: list[int], task: Any) -> None:
    short, long = (suggest_from_adamw(1e-3, total_steps=n, task=task) for n in steps)
    assert short.betas[0] <= long.betas[0]
    assert short.lr <= long.lr


def test_the_words_agree_with_the_numbers() -> None:
    s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=8_000, task="vision", batch_size=4096)
    words = {reason.split(" = ")[0]: float(re.split(r"[ ,]", reason.split(" = ")[1])[0]) for reason in s.why}
    assert words["lr"] == s.lr
    assert (words["b1"], words["b2"], words["b3"]) == s.betas
    assert (words["weight_decay"], words["warmup_steps"]) == (s.weight_decay, s.warmup_steps)


def test_print_shows_the_call_and_each_reason_on_a_line() -> None:
    s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1_500, task="lm")
    head, *rest = str(s).splitlines()
    assert head == "Adan(lr=0.002, betas=(0.9, 0.92, 0.99), eps=1e-08, weight_decay=0.04), warm-up of 75 steps"
    assert rest == [f"- {reason}" for reason in s.why]


def test_a_suggestion_is_frozen() -> None:
    s = suggest_from_adamw(1e-3)
    assert isinstance(s, Suggestion)
    with pytest.raises(dataclasses.FrozenInstanceError):
        s.lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({"lr": 0.0}, ValueError, "lr must be finite and above 0, got 0.0; give the peak"),
        ({"lr": math.nan}, ValueError, "lr must be finite and above 0, got nan"),
        ({"lr": "1e-3"}, TypeError, "lr must be a number, got '1e-3' of type str"),
        ({"lr": True}, TypeError, "lr must be a number, got True"),
        ({"weight_decay": -0.1}, ValueError, "weight_decay must be finite and at least 0, got -0.1"),
        ({"weight_decay": None}, TypeError, "weight_decay must be a number, got None"),
        ({"eps": -1e-8}, ValueError, "eps must be finite and at least 0, got -1e-08"),
        ({"betas": (0.98, 0.92, 0.99)}, ValueError, "betas must be AdamW's two numbers, got (0.98, 0.92, 0.99)"),
        ({"betas": 0.9}, ValueError, "betas must be AdamW's two numbers, got 0.9"),
        ({"betas": "ab"}, ValueError, "betas must be AdamW's two numbers, got 'ab'"),
        ({"betas": (1.0, 0.999)}, ValueError, "betas[0] must be below 1, got 1.0"),
        ({"betas": (0.9, -0.1)}, ValueError, "betas[1] must be finite and at least 0, got -0.1"),
        ({"betas": (0.9, "x")}, TypeError, "betas[1] must be a number, got 'x'"),
        ({"total_steps": 0}, ValueError, "total_steps must be at least 1, got 0; give optimizer steps"),
        ({"total_steps": 10.5}, TypeError, "total_steps must be an integer, got 10.5"),
        ({"total_steps": 1e400}, TypeError, "total_steps must be an integer, got inf"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps must be at least 0, got -1"),
        ({"warmup_steps": 0.1}, TypeError, "warmup_steps must be an integer, got 0.1"),
        ({"total_steps": 100, "warmup_steps": 100}, ValueError, "warmup_steps=100 must be below total_steps=100"),
        ({"task": "nlp"}, ValueError, "task must be one of 'vision', 'lm', 'moe', 'finetune', 'rl' or None, got 'nlp'"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an integer, got 2.5"),
    ],
)
def test_arguments_that_are_refused(kwargs: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=re.escape(match)):
        suggest_from_adamw(**{"lr": 1e-3, **kwargs})


# --- the page -------------------------------------------------------------------------------------------------------


def row(name: str, recipe: Recipe) -> str:
    """A recipe's line in the page's table; — is what the paper does not state."""
    lr = "—" if recipe.lr is None else " or ".join(f"{x:.4g}" for x in recipe.lr_sweep or (recipe.lr,))
    rest = (recipe.weight_decay, recipe.max_grad_norm, recipe.batch_size, recipe.warmup_epochs)
    cells = [f"`{name}`", lr, str(recipe.betas), *("—" if x is None else f"{x:g}" for x in rest), recipe.source]
    return f"| {' | '.join(cells)} |"


def test_the_page_shows_every_recipe_and_no_other() -> None:
    part = PAGE.with_name("api.md").read_text(encoding="utf-8").partition("## The paper's settings")[2]
    rows = re.findall(r"^\| `.*", part, flags=re.MULTILINE)
    assert rows == [row(name, recipe) for name, recipe in recipes.items()]


def test_the_page_shows_what_a_suggestion_prints() -> None:
    s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1_500, task="lm")
    assert "\n".join(str(s).splitlines()[:3]) in PAGE.read_text(encoding="utf-8")


def test_a_number_of_steps_may_be_written_as_1e4() -> None:
    assert suggest_from_adamw(1e-3, total_steps=1e4) == suggest_from_adamw(1e-3, total_steps=10_000)  # type: ignore[arg-type]
