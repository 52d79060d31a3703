"""Each rule of `parameter_groups` on a model in which only that rule can decide."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn

import adan
from adan.parameter_groups import NO_DECAY_NAMES, parameter_groups


def decays(model: nn.Module, **kwargs: Any) -> set[str]:
    """Names in the group with decay."""
    return {
        name for group in parameter_groups(model, 0.1, **kwargs) if group["weight_decay"] for name, _ in group["params"]
    }


def names(model: nn.Module, **kwargs: Any) -> list[str]:
    return [name for group in parameter_groups(model, 0.1, **kwargs) for name, _ in group["params"]]


class Holder(nn.Module):
    """Parameters of three dimensions under given names, so that neither shape nor type decides."""

    def __init__(self, *parameter_names: str, listed: Iterable[str] | None = None) -> None:
        super().__init__()
        for name in parameter_names:
            self.register_parameter(name, nn.Parameter(torch.ones(1, 2, 3)))
        if listed is not None:
            self.no_weight_decay = lambda: listed


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patch = nn.Conv2d(3, 8, 2)
        self.words = nn.Embedding(10, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))


def test_a_transformer() -> None:
    groups = parameter_groups(Transformer(), 0.05)
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    assert [name for name, _ in groups[0]["params"]] == [
        "patch.weight",
        "words.weight",
        "block.self_attn.in_proj_weight",
        "block.self_attn.out_proj.weight",
        "block.linear1.weight",
        "block.linear2.weight",
    ]


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("named", [True, False])
def test_an_optimizer_takes_the_groups_and_decays_accordingly(optimizer: type, named: bool) -> None:
    model = nn.Linear(3, 2)
    before = [p.detach().clone() for p in model.parameters()]
    opt = optimizer(parameter_groups(model, 0.5, named=named), lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(model.weight.detach(), before[0] * 0.95)
    assert torch.equal(model.bias.detach(), before[1])
    assert [group.get("param_names") for group in opt.param_groups] == (
        [["weight"], ["bias"]] if named else [None, None]
    )


@pytest.mark.parametrize(("shape", "decay"), [((), False), ((4,), False), ((4, 1), True), ((1, 4), True)])
def test_fewer_than_two_dimensions_do_not_decay(shape: tuple[int, ...], decay: bool) -> None:
    model = nn.Module()
    model.gamma = nn.Parameter(torch.ones(shape))
    assert decays(model) == ({"gamma"} if decay else set())


def test_without_names_the_groups_hold_parameters() -> None:
    model = nn.Linear(3, 2)
    groups = parameter_groups(model, 0.5, named=False)
    assert groups[0]["params"][0] is model.weight
    assert groups[1]["params"][0] is model.bias
    assert all(set(group) == {"params", "weight_decay"} for group in groups)


@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm((2, 3)),
        nn.RMSNorm((2, 3)),
        nn.GroupNorm(2, 4),
        nn.BatchNorm1d(4),
        nn.SyncBatchNorm(4),
        nn.InstanceNorm2d(4, affine=True),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_norms_of_torch(norm: nn.Module) -> None:
    assert decays(norm) == set()
    assert names(norm)


def test_norms_of_torch_are_known_by_type_also_in_a_subclass() -> None:
    class Fancy(nn.LayerNorm):
        pass

    assert decays(Fancy((2, 3))) == set()


@pytest.mark.parametrize("name", ["LlamaRMSNorm", "LayerNorm2d", "ConvNextV2GRN", "BatchNormAct2d"])
def test_norms_of_others_are_known_by_their_class_name(name: str) -> None:
    assert decays(type(name, (Holder,), {})("weight")) == set()


@pytest.mark.parametrize("name", ["PreNormBlock", "NormedLinear", "Normalizer", "Holder"])
def test_other_classes_decay(name: str) -> None:
    assert decays(type(name, (Holder,), {})("weight")) == {"weight"}


def test_what_a_norm_contains_is_no_norm() -> None:
    class AdaNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modulation = nn.Linear(4, 4)

    assert decays(AdaNorm()) == {"modulation.weight"}


@pytest.mark.parametrize("name", ["bias", "in_proj_bias", "bias_k", "q_bias_table"])
def test_biases_of_any_shape_do_not_decay(name: str) -> None:
    assert decays(Holder(name, "weight"), no_decay_names=()) == {"weight"}


def test_only_the_last_part_of_a_name_makes_a_bias() -> None:
    assert decays(nn.ModuleDict({"bias": nn.Linear(2, 2)})) == {"bias.weight"}
    assert decays(Holder("unbiased")) == {"unbiased"}


@pytest.mark.parametrize(
    "name",
    [
        "pos_embed",
        "pos_embedding",
        "absolute_pos_embed",
        "decoder_pos_embed",
        "positional_embedding",
        "position_embeddings",
        "query_position_embeddings",
        "pos_encoding",
        "positional_encoding",
        "embed_positions",
        "wpe",
        "rel_pos_h",
        "relative_position_bias_table",
        "relative_position_table",
        "relative_attention_bias",
        "cls_token",
        "class_token",
        "dist_token",
        "distillation_token",
        "mask_token",
        "reg_token",
        "register_tokens",
    ],
)
def test_positions_and_tokens_by_name(name: str) -> None:
    assert decays(nn.ModuleDict({"deep": Holder(name, "weight")})) == {"deep.weight"}
    assert decays(nn.ModuleDict({name: Holder("weight")})) == set()


@pytest.mark.parametrize(
    "name", ["wte", "composition_embed", "token_embedding", "repos_embed", "proposal", "tokens", "head"]
)
def test_other_names_decay(name: str) -> None:
    assert decays(Holder(name)) == {name}


def test_no_decay_names_replace_the_default() -> None:
    model = nn.ModuleDict({"a": Holder("pos_embed", "wte"), "b": Holder("wte")})
    assert decays(model) == {"a.wte", "b.wte"}
    assert decays(model, no_decay_names=()) == {"a.pos_embed", "a.wte", "b.wte"}
    assert decays(model, no_decay_names=["w?e"]) == {"a.pos_embed"}
    assert decays(model, no_decay_names=["WTE"]) == {"a.pos_embed", "a.wte", "b.wte"}
    assert decays(model, no_decay_names=(name for name in (*NO_DECAY_NAMES, "wte"))) == set()


def test_a_pattern_with_a_dot_matches_the_whole_name() -> None:
    model = nn.ModuleDict({"a": Holder("wte"), "b": Holder("wte")})
    assert decays(model, no_decay_names=["b.wte"]) == {"a.wte"}
    assert decays(model, no_decay_names=["*.wte"]) == set()
    assert decays(model, no_decay_names=["a*e"]) == {"a.wte", "b.wte"}


def test_what_the_model_lists_does_not_decay() -> None:
    assert decays(Holder("gamma", "kernel", "kernel2", listed={"kernel"})) == {"gamma", "kernel2"}


def test_modules_inside_are_asked_too_and_may_list_modules() -> None:
    backbone = Holder("kernel", listed=["kernel", "mlp"])
    backbone.mlp = nn.Linear(2, 2)
    backbone.mlp2 = nn.Linear(2, 2)
    model = nn.ModuleDict({"backbone": backbone, "head": Holder("kernel")})
    assert decays(model) == {"backbone.mlp2.weight", "head.kernel"}


def test_frozen_parameters_are_left_out() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    assert names(model) == ["1.weight", "1.bias"]


def test_a_shared_parameter_stands_once_under_its_first_name() -> None:
    model = nn.ModuleDict({"wte": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["wte"].weight
    assert names(model) == ["wte.weight"]


def test_a_shared_parameter_does_not_decay_if_one_of_its_names_says_so() -> None:
    model = Holder("kernel", "cls_token")
    model.cls_token = model.kernel
    assert names(model) == ["kernel"]
    assert decays(model) == set()


def test_a_shared_module_does_not_decay_if_one_of_its_names_says_so() -> None:
    model = nn.Module()
    model.tok = model.wpe = nn.Embedding(4, 4)
    assert names(model) == ["tok.weight"]
    assert decays(model) == set()


def test_empty_groups_are_dropped() -> None:
    assert [group["weight_decay"] for group in parameter_groups(nn.Linear(2, 2, bias=False), 0.3)] == [0.3]
    assert [group["weight_decay"] for group in parameter_groups(nn.LayerNorm(2), 0.3)] == [0.0]


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)], ids=["none", "frozen"])
def test_nothing_to_train(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="model has no parameter with requires_grad=True"):
        parameter_groups(model, 0.1)


def test_every_trainable_parameter_stands_exactly_once_and_in_order() -> None:
    model = Transformer()
    groups = parameter_groups(model, 0.1)
    got = [(name, p) for group in groups for name, p in group["params"]]
    assert {name: id(p) for name, p in got} == {name: id(p) for name, p in model.named_parameters()}
    assert len(got) == len(list(model.parameters()))
    order = {name: i for i, (name, _) in enumerate(model.named_parameters())}
    for group in groups:
        indices = [order[name] for name, _ in group["params"]]
        assert indices == sorted(indices)


def test_zero_decay_keeps_both_groups() -> None:
    assert [group["weight_decay"] for group in parameter_groups(nn.Linear(2, 2), 0)] == [0.0, 0.0]


def test_lazy_parameters_need_a_batch_first() -> None:
    with pytest.raises(ValueError, match=r"'0\.weight' has no shape yet; run one batch"):
        parameter_groups(nn.Sequential(nn.LazyLinear(2)), 0.1)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_weight_decay_out_of_range(value: float) -> None:
    with pytest.raises(ValueError, match="weight_decay must be finite and at least 0, got"):
        parameter_groups(nn.Linear(2, 2), value)


@pytest.mark.parametrize("value", ["0.1", None, True, 1j])
def test_weight_decay_that_is_no_number(value: Any) -> None:
    with pytest.raises(TypeError, match="weight_decay must be a number, got"):
        parameter_groups(nn.Linear(2, 2), value)


def test_model_must_be_a_module() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, got generator"):
        parameter_groups(nn.Linear(2, 2).parameters(), 0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"no_decay_names": "wte"}, "no_decay_names must be a collection of strings, got 'wte'"),
        ({"no_decay_names": None}, "no_decay_names must be a collection of strings, got None"),
        ({"no_decay_names": [1]}, r"no_decay_names must be a collection of strings, got \[1\]"),
        ({"lr": 0.1}, "lr=0.1 and layer_decay=None: pass both, or lr to the optimizer"),
        ({"layer_decay": 0.5}, "lr=None and layer_decay=0.5: pass both"),
        ({"lr": -1, "layer_decay": 0.5}, "lr must be finite and at least 0, got -1"),
        ({"lr": 1.0, "layer_decay": -0.5}, "layer_decay must be finite and above 0, got -0.5"),
        ({"lr": 1.0, "layer_decay": "a"}, "layer_decay must be a number, got 'a'"),
        ({"rules": {"*": 0.1}}, r"rules must map patterns or classes to options, .* got \{'\*': 0.1\}"),
        ({"rules": {3: {"lr": 1.0}}}, "rules must map patterns or classes to options, .* got {3:"),
        ({"rules": [{"lr": 1.0}]}, "rules must map patterns or classes to options"),
    ],
    ids=str,
)
def test_arguments_that_mean_nothing(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        parameter_groups(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), 0.1, **kwargs)


def test_what_a_module_lists_must_be_names() -> None:
    model = Holder("kernel")
    model.no_weight_decay = lambda: None
    with pytest.raises(TypeError, match=r"what Holder.no_weight_decay\(\) returns must be a collection of"):
        parameter_groups(model, 0.1)


@pytest.mark.parametrize("groups", [lambda p: p, lambda p: [{"params": p}]], ids=["parameters", "a generator"])
def test_groups_that_cannot_be_described(groups: Any) -> None:
    with pytest.raises(TypeError, match=r"groups must be dicts with a list 'params', as .*, got"):
        adan.describe_groups(groups(nn.Linear(2, 2).parameters()))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 7)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def rows(groups):
    """Options by the name of the parameter."""
    return {
        name: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name, _ in group["params"]
    }


def test_rules_by_name_and_by_module():
    rules = {
        "*embed*": {"lr": 1e-3, "state_format": "8bit"},
        nn.LayerNorm: {"lr": 5e-3},
        "blocks.1.*": {"lr": 7e-3},
    }
    model = Blocks()
    found = rows(groups := parameter_groups(model, 0.1, rules=rules))
    assert found["embed.weight"] == {"weight_decay": 0.1, "lr": 1e-3, "state_format": "8bit"}
    assert found["norm.bias"] == found["blocks.0.1.weight"] == {"weight_decay": 0.0, "lr": 5e-3}
    assert found["blocks.1.1.weight"] == {"weight_decay": 0.0, "lr": 7e-3}  # the later rule
    assert found["blocks.1.0.weight"] == {"weight_decay": 0.1, "lr": 7e-3}
    assert found["head.weight"] == {"weight_decay": 0.1}
    assert found["head.bias"] == {"weight_decay": 0.0}
    assert set(found) == {name for name, _ in model.named_parameters()}
    optimizer = adan.Adan(groups, lr=2e-3)
    assert sorted({group["lr"] for group in optimizer.param_groups}) == [1e-3, 2e-3, 5e-3, 7e-3]
    assert {group["state_format"] for group in optimizer.param_groups} == {"fp32", "8bit"}
    model(torch.arange(7)).square().mean().backward()
    optimizer.step()
    assert "embed.weight (7, 4) weight_decay=0.1 lr=0.001 state_format='8bit'" in adan.describe_groups(groups)
    assert "embed.weight (7, 4) weight_decay=0.1 lr=0.001" in adan.describe_groups(optimizer.param_groups)


def test_a_rule_that_fits_nothing_is_an_error():
    with pytest.raises(ValueError, match=r"rules: '\*.embedding' matches no trainable parameter; names are"):
        parameter_groups(Blocks(), 0.1, rules={"*.embedding": {"lr": 1.0}})


def test_rates_by_layer():
    found = rows(parameter_groups(Blocks(), 0.1, lr=1.0, layer_decay=0.5, rules={"head.bias": {"lr": 9.0}}))
    rates = {name: options["lr"] for name, options in found.items()}
    assert rates["embed.weight"] == 0.5**4
    assert [rates[f"blocks.{i}.0.weight"] for i in range(3)] == [0.5**3, 0.5**2, 0.5]
    assert rates["norm.weight"] == rates["head.weight"] == 1.0
    assert rates["head.bias"] == 9.0
    with pytest.raises(ValueError, match=r"layer_decay: the model has no nn.ModuleList"):
        parameter_groups(nn.Linear(2, 2), 0.1, lr=1.0, layer_decay=0.5)
