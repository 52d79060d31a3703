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


@pytest.mark.parametrize(
    ("arguments", "lr"), [((256,), 6.25e-3), ((1024,), 1.25e-2), ((16384,), 5e-2), ((400, 0.1, 100), 0.2)]
)
def test_scaled_lr_is_the_papers(arguments: Any, lr: float) -> None:
    assert scaled_lr(*arguments) == pytest.approx(lr, rel=1e-12)


@patient
@given(st.integers(1, 10**6), st.integers(1, 10**4), st.floats(1e-6, 1.0))
def test_scaled_lr_squared_is_linear_in_the_batch(batch_size: int, base: int, lr: float) -> None:
    assert scaled_lr(base, lr, base) == lr
    assert scaled_lr(4 * batch_size, lr, base) == pytest.approx(2 * scaled_lr(batch_size, lr, base), rel=1e-12)


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        *(
            ({name: value}, error, f"{name} must be .*, got {re.escape(repr(value))}")
            for name in ("batch_size", "base_batch_size", "base_lr")
            for value, error in (
                (0, ValueError),
                (-8, ValueError),
                ("8", TypeError),
                (None, TypeError),
                (True, TypeError),
            )
        ),
        ({"batch_size": 256.5}, TypeError, r"batch_size must be an integer, got 256\.5"),
        ({"base_lr": math.inf}, ValueError, "base_lr must be finite and above 0, got inf"),
    ],
    ids=str,
)
def test_scaled_lr_refuses(arguments: dict[str, Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        scaled_lr(**{"batch_size": 256, **arguments})


# --- recipes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPER)
def test_a_recipe_is_what_the_paper_states(name: str) -> None:
    assert recipes.keys() == PAPER.keys()
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
    if recipe.lr is None or recipe.batch_size is None or recipe.warmup_epochs is None:
        assert re.search(r"not (stated|give)|without saying", recipe.notes)


def test_the_sweep_of_bert_fine_tuning() -> None:
    assert recipes["bert-finetune"].lr_sweep == (2e-5, 4e-5)
    assert all(not recipe.lr_sweep or recipe.lr_sweep[0] == recipe.lr for recipe in recipes.values())


EVERY = {"lr": 1.0, "betas": (0.4, 0.5, 0.6), "weight_decay": 2.0, "eps": 3.0, "max_grad_norm": 4.0, "no_prox": True}


@pytest.mark.parametrize("recipe", [*recipes.values(), Recipe(source="", **EVERY)], ids=[*recipes, "every option"])
def test_adan_takes_the_options_of_a_recipe(recipe: Recipe) -> None:
    """Those that are stated."""
    options = {name: value for name in EVERY if (value := getattr(recipe, name)) is not None}
    assert recipe.options() == options
    group = Adan([torch.nn.Parameter(torch.ones(2))], **options).param_groups[0]
    assert group.items() >= options.items()


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
    assert all(name in str(error.value) and name in repr(recipes) for name in recipes)
    assert recipes.get("gpt-5") is None
    assert "gpt-5" not in recipes


# --- suggest_from_adamw: the values ---------------------------------------------------------------------------------


def test_lr_grows_by_one_ratio_and_the_decay_shrinks_by_it() -> None:
    s = suggest_from_adamw(2e-3, weight_decay=0.1, total_steps=2_000, eps=1e-6)
    assert s.options()["eps"] == 1e-6
    assert (s.lr, s.betas, s.weight_decay, s.warmup_steps) == (5e-3, (0.9, 0.92, 0.99), 0.04, 100)
    assert suggest_from_adamw(1e-3, weight_decay=0).weight_decay == 0.0


@pytest.mark.parametrize(
    ("total_steps", "b1"),
    [(1, 0.9), (4_000, 0.9), (5_000, 0.92), (8_000, 0.95), (10_000, 0.96), (20_000, 0.98), (10**6, 0.98)],
)
def test_b1_follows_the_length_of_the_run(total_steps: int, b1: float) -> None:
    assert suggest_from_adamw(1e-3, total_steps=total_steps).betas == (b1, 0.92, 0.99)


def test_without_a_length_one_is_assumed() -> None:
    s = suggest_from_adamw(1e-3)
    assert s.why[0].startswith("total_steps = 2,000 (assumption)")
    assert suggest_from_adamw(1e-3, total_steps=2e3) == dataclasses.replace(s, why=s.why[1:])  # type: ignore[arg-type]
    assert (
        suggest_from_adamw(1e-3, warmup_steps=1_000).betas[0] == suggest_from_adamw(1e-3, total_steps=10_000).betas[0]
    )


@pytest.mark.parametrize(
    ("kwargs", "warmup_steps"),
    [
        ({"total_steps": 100_000}, 5_000),
        ({"total_steps": 10}, 0),
        ({}, 100),
        ({"total_steps": 100_000, "warmup_steps": 2_000}, 5_000),
        ({"total_steps": 100_000, "warmup_steps": 6_000}, 12_000),
        ({"total_steps": 100_000, "warmup_steps": 30_000}, 50_000),
        ({"total_steps": 100_000, "warmup_steps": 60_000}, 60_000),
        ({"total_steps": 20}, 2),  # OneCycleLR divides by zero where a warm-up has one step
        ({"total_steps": 2, "warmup_steps": 1}, 0),
        ({"total_steps": 3, "warmup_steps": 1}, 2),
        ({"total_steps": 10, "warmup_steps": 1}, 2),
    ],
)
def test_warm_up_is_twice_adamws_and_at_least_a_twentieth(kwargs: dict[str, Any], warmup_steps: int) -> None:
    assert suggest_from_adamw(1e-3, **kwargs).warmup_steps == warmup_steps


@pytest.mark.parametrize(("lr", "said"), [(3.1e-3, False), (3.2e-3, True), (0.1, True)])
def test_a_rate_at_which_a_run_diverged_says_so(lr: float, said: bool) -> None:
    (reason,) = (reason for reason in suggest_from_adamw(lr).why if reason.startswith("lr"))
    assert ("diverged at 0.008" in reason) is said


# --- suggest_from_adamw: the form -----------------------------------------------------------------------------------


@patient
@given(
    lr=st.floats(1e-6, 1.0),
    weight_decay=st.floats(0.0, 1.0),
    total_steps=st.none() | st.integers(1, 10**7),
    share=st.floats(0, 1, exclude_max=True),
)
def test_any_suggestion_is_fit_for_adan_and_explains_itself(total_steps: int | None, share: float, **kw: Any) -> None:
    s = suggest_from_adamw(total_steps=total_steps, warmup_steps=int(share * (total_steps or 1)), **kw)
    Adan([torch.nn.Parameter(torch.ones(2))], **s.options())
    assert s.lr == pytest.approx(2.5 * kw["lr"], rel=6e-3)
    assert s.weight_decay == pytest.approx(kw["weight_decay"] / 2.5, rel=6e-3)
    assert 0 <= s.warmup_steps < (total_steps or 10**7)
    assert s.warmup_steps != 1
    for reason in s.why:
        assert re.search(r"\((paper|authors|measured|assumption|kept)\): .*\.$", reason), reason
    words = {reason.split(" = ")[0]: reason.split(" = ")[1].split(" ")[0].rstrip(",") for reason in s.why}
    numbers = {name: float(number.replace(",", "")) for name, number in words.items()}
    assert (numbers["b1"], numbers["b2"], numbers["b3"]) == s.betas
    for name in ("lr", "weight_decay", "warmup_steps", "eps"):
        assert numbers[name] == pytest.approx(getattr(s, name), rel=1e-5)


def test_print_shows_the_call_and_each_reason_on_a_line() -> None:
    s = suggest_from_adamw(1e-3, weight_decay=0.1, total_steps=1_500)
    head, *rest = str(s).splitlines()
    assert head == "Adan(lr=0.0025, betas=(0.9, 0.92, 0.99), eps=1e-08, weight_decay=0.04), warm-up of 75 steps"
    assert rest == [f"- {reason}" for reason in s.why]
    assert "\n".join(str(s).splitlines()[:3]) in PAGE.read_text(encoding="utf-8")
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
        ({"total_steps": 0}, ValueError, "total_steps must be at least 1, got 0; give optimizer steps"),
        ({"total_steps": 10.5}, TypeError, "total_steps must be an integer, got 10.5"),
        ({"total_steps": 1e400}, TypeError, "total_steps must be an integer, got inf"),
        ({"warmup_steps": -1}, ValueError, "warmup_steps must be at least 0, got -1"),
        ({"warmup_steps": 0.1}, TypeError, "warmup_steps must be an integer, got 0.1"),
        ({"total_steps": 100, "warmup_steps": 100}, ValueError, "warmup_steps=100 must be below total_steps=100"),
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
