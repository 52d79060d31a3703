"""Each rule of `parameter_groups` on a model in which only that rule can decide."""

import pytest
import torch
from torch import nn

import adan
from adan.parameter_groups import NO_DECAY_NAMES, parameter_groups


def decays(model, **options):
    """Names in the group with decay."""
    return {name for name, group in rows(parameter_groups(model, 0.1, **options)).items() if group["weight_decay"]}


def rows(groups):
    """Options by the name of the parameter."""
    return {
        name: {key: value for key, value in group.items() if key != "params"}
        for group in groups
        for name, _ in group["params"]
    }


class Holder(nn.Module):
    """Parameters of three dimensions under given names, so that neither shape nor type decides."""

    def __init__(self, *parameter_names, listed=None):
        super().__init__()
        for name in parameter_names:
            self.register_parameter(name, nn.Parameter(torch.ones(1, 2, 3)))
        if listed is not None:
            self.no_weight_decay = lambda: listed


def holder_of(**members):
    """A module with these members, which may be one and the same."""
    module = nn.Module()
    for name, member in members.items():
        setattr(module, name, member)
    return module


def of_class(name, base=Holder, *args):
    return type(name, (base,), {})(*args or ("weight",))


def shaped(*shape):
    return holder_of(gamma=nn.Parameter(torch.ones(shape)))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 8))
        self.pos_embed = nn.Parameter(torch.zeros(1, 5, 8))
        self.patch = nn.Conv2d(3, 8, 2)
        self.words = nn.Embedding(10, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16)
        self.logit_scale = nn.Parameter(torch.tensor(1.0))


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


def tied():
    model = nn.ModuleDict({"wte": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["wte"].weight
    return model


KERNEL, EMBEDDING = nn.Parameter(torch.ones(1, 2, 3)), nn.Embedding(4, 4)
TWO = nn.ModuleDict({"a": Holder("pos_embed", "wte"), "b": Holder("wte")})
BACKBONE = holder_of(kernel=KERNEL, mlp=nn.Linear(2, 2), mlp2=nn.Linear(2, 2))
BACKBONE.no_weight_decay = lambda: ["kernel", "mlp"]

OTHER_NAMES = "unbiased wte composition_embed token_embedding repos_embed proposal tokens head"
#: A model, options, and the names that decay. The other names are those of no weight decay.
DECAYS = {
    "a scalar": (shaped(), {}, ""),
    "one dimension": (shaped(4), {}, ""),
    "two dimensions": (shaped(4, 1), {}, "gamma"),
    "two dimensions, turned": (shaped(1, 4), {}, "gamma"),
    **{
        type(norm).__name__: (norm, {}, "")
        for norm in (
            nn.LayerNorm((2, 3)),
            nn.RMSNorm((2, 3)),
            nn.GroupNorm(2, 4),
            nn.BatchNorm1d(4),
            nn.SyncBatchNorm(4),
            nn.InstanceNorm2d(4, affine=True),
        )
    },
    "a subclass of LayerNorm": (of_class("Fancy", nn.LayerNorm, (2, 3)), {}, ""),
    **{name: (of_class(name), {}, "") for name in ("LlamaRMSNorm", "LayerNorm2d", "ConvNextV2GRN", "BatchNormAct2d")},
    **{name: (of_class(name), {}, "weight") for name in ("PreNormBlock", "NormedLinear", "Normalizer", "Holder")},
    "in a norm, but no norm": (type("AdaNorm", (nn.Sequential,), {})(nn.Linear(4, 4)), {}, "0.weight"),
    **{
        name: (Holder(name, "weight"), {"no_decay_names": ()}, "weight")
        for name in ("bias", "in_proj_bias", "bias_k", "q_bias_table")
    },
    "a module called bias": (nn.ModuleDict({"bias": nn.Linear(2, 2)}), {}, "bias.weight"),
    **{name: (Holder(name), {}, name) for name in OTHER_NAMES.split()},
    "default names": (TWO, {}, "a.wte b.wte"),
    "no names": (TWO, {"no_decay_names": ()}, "a.pos_embed a.wte b.wte"),
    "a pattern": (TWO, {"no_decay_names": ["w?e"]}, "a.pos_embed"),
    "names have a case": (TWO, {"no_decay_names": ["WTE"]}, "a.pos_embed a.wte b.wte"),
    "a generator of names": (TWO, {"no_decay_names": (name for name in (*NO_DECAY_NAMES, "wte"))}, ""),
    "a whole name": (TWO, {"no_decay_names": ["b.wte"]}, "a.pos_embed a.wte"),
    "a pattern of whole names": (TWO, {"no_decay_names": ["*.wte"]}, "a.pos_embed"),
    "a pattern without a dot": (TWO, {"no_decay_names": ["a*e"]}, "a.pos_embed a.wte b.wte"),
    "listed by the model": (Holder("gamma", "kernel", "kernel2", listed={"kernel"}), {}, "gamma kernel2"),
    "listed inside, and a module": (
        nn.ModuleDict({"backbone": BACKBONE, "head": Holder("kernel")}),
        {},
        "backbone.mlp2.weight head.kernel",
    ),
    "shared, one name says so": (holder_of(kernel=KERNEL, cls_token=KERNEL), {}, ""),
    "a shared module, one name says so": (holder_of(tok=EMBEDDING, wpe=EMBEDDING), {}, ""),
}


@pytest.mark.parametrize("case", DECAYS)
def test_what_decays(case):
    model, options, expected = DECAYS[case]
    assert decays(model, **options) == set(expected.split())


POSITIONS = """
    pos_embed pos_embedding absolute_pos_embed decoder_pos_embed positional_embedding position_embeddings
    query_position_embeddings pos_encoding positional_encoding embed_positions wpe rel_pos_h
    relative_position_bias_table relative_position_table relative_attention_bias
    cls_token class_token dist_token distillation_token mask_token reg_token register_tokens
"""


@pytest.mark.parametrize("name", POSITIONS.split())
def test_positions_and_tokens_by_name(name):
    assert decays(nn.ModuleDict({"deep": Holder(name, "weight")})) == {"deep.weight"}
    assert decays(nn.ModuleDict({name: Holder("weight")})) == set()


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)), "1.weight 1.bias"),
        (tied(), "wte.weight"),
        (holder_of(kernel=KERNEL, cls_token=KERNEL), "kernel"),
        (holder_of(tok=EMBEDDING, wpe=EMBEDDING), "tok.weight"),
        (nn.LayerNorm(2), "weight bias"),
    ],
    ids=["frozen", "shared", "shared parameter", "shared module", "norm"],
)
def test_a_trainable_parameter_stands_once_under_its_first_name(model, names):
    assert [name for group in parameter_groups(model, 0.1) for name, _ in group["params"]] == names.split()


def test_a_transformer():
    groups = parameter_groups(model := Transformer(), 0.05)
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
    order = [name for name, _ in model.named_parameters()]
    decayed = [
        "patch.weight",
        "words.weight",
        "block.self_attn.in_proj_weight",
        "block.self_attn.out_proj.weight",
        "block.linear1.weight",
        "block.linear2.weight",
    ]
    assert [name for name, _ in groups[0]["params"]] == decayed
    assert [name for name, _ in groups[1]["params"]] == [name for name in order if name not in decayed]
    assert all(p is model.get_parameter(name) for group in groups for name, p in group["params"])


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("named", [True, False])
def test_an_optimizer_takes_the_groups_and_decays_accordingly(optimizer, named):
    model = nn.Linear(3, 2)
    before = [p.detach().clone() for p in model.parameters()]
    groups = parameter_groups(model, 0.5, named=named)
    assert all(set(group) == {"params", "weight_decay"} for group in groups)
    opt = optimizer(groups, lr=0.1)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    opt.step()
    torch.testing.assert_close(model.weight.detach(), before[0] * 0.95)
    assert torch.equal(model.bias.detach(), before[1])
    assert [group.get("param_names") for group in opt.param_groups] == (
        [["weight"], ["bias"]] if named else [None, None]
    )


@pytest.mark.parametrize(
    ("model", "weight_decay", "expected"),
    [
        (nn.Linear(2, 2, bias=False), 0.3, [0.3]),
        (nn.LayerNorm(2), 0.3, [0.0]),
        (nn.Linear(2, 2), 0, [0.0, 0.0]),
    ],
    ids=str,
)
def test_empty_groups_are_dropped_and_those_of_no_decay_are_not(model, weight_decay, expected):
    assert [group["weight_decay"] for group in parameter_groups(model, weight_decay)] == expected


LAYERS = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
NO_TRAINABLE = "model has no parameter with requires_grad=True"
LISTED = Holder("kernel")
LISTED.no_weight_decay = lambda: None


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.ReLU(), {}, NO_TRAINABLE),
        (nn.Linear(2, 2).requires_grad_(False), {}, NO_TRAINABLE),
        (nn.Sequential(nn.LazyLinear(2)), {}, r"'0\.weight' has no shape yet; run one batch"),
        (nn.Linear(2, 2).parameters(), {}, r"model must be a torch\.nn\.Module, got generator"),
        (LISTED, {}, r"what Holder.no_weight_decay\(\) returns must be a collection of"),
        *(
            (LAYERS, {"weight_decay": value}, "weight_decay must be finite and at least 0, got")
            for value in (-0.1, float("nan"), float("inf"))
        ),
        *((LAYERS, {"weight_decay": value}, "weight_decay must be a number, got") for value in ("0.1", None, True, 1j)),
        (LAYERS, {"no_decay_names": "wte"}, "no_decay_names must be a collection of strings, got 'wte'"),
        (LAYERS, {"no_decay_names": None}, "no_decay_names must be a collection of strings, got None"),
        (LAYERS, {"no_decay_names": [1]}, r"no_decay_names must be a collection of strings, got \[1\]"),
        (LAYERS, {"lr": 0.1}, "lr=0.1 and layer_decay=None: pass both, or lr to the optimizer"),
        (LAYERS, {"layer_decay": 0.5}, "lr=None and layer_decay=0.5: pass both"),
        (LAYERS, {"lr": -1, "layer_decay": 0.5}, "lr must be finite and at least 0, got -1"),
        (LAYERS, {"lr": 1.0, "layer_decay": -0.5}, "layer_decay must be finite and above 0, got -0.5"),
        (LAYERS, {"lr": 1.0, "layer_decay": "a"}, "layer_decay must be a number, got 'a'"),
        (nn.Linear(2, 2), {"lr": 1.0, "layer_decay": 0.5}, r"layer_decay: the model has no nn.ModuleList"),
        (LAYERS, {"rules": {"*": 0.1}}, r"rules must map patterns or classes to options, .* got \{'\*': 0.1\}"),
        (LAYERS, {"rules": {3: {"lr": 1.0}}}, "rules must map patterns or classes to options, .* got {3:"),
        (LAYERS, {"rules": [{"lr": 1.0}]}, "rules must map patterns or classes to options"),
        (LAYERS, {"rules": {"*.embedding": {"lr": 1.0}}}, r"'\*.embedding' matches no trainable parameter; names are"),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_what_is_refused(model, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        parameter_groups(model, **{"weight_decay": 0.1, **options})


@pytest.mark.parametrize("groups", [lambda p: p, lambda p: [{"params": p}]], ids=["parameters", "a generator"])
def test_groups_that_cannot_be_described(groups):
    with pytest.raises(TypeError, match=r"groups must be dicts with a list 'params', as .*, got"):
        adan.describe_groups(groups(nn.Linear(2, 2).parameters()))


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


def test_rates_by_layer():
    found = rows(parameter_groups(Blocks(), 0.1, lr=1.0, layer_decay=0.5, rules={"head.bias": {"lr": 9.0}}))
    rates = {name: options["lr"] for name, options in found.items()}
    assert rates["embed.weight"] == 0.5**4
    assert [rates[f"blocks.{i}.0.weight"] for i in range(3)] == [0.5**3, 0.5**2, 0.5]
    assert rates["norm.weight"] == rates["head.weight"] == 1.0
    assert rates["head.bias"] == 9.0


def test_layers_are_those_of_the_longest_stack_not_of_the_first():
    model = holder_of(stem=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), body=Blocks())
    found = rows(parameter_groups(model, 0.1, lr=1.0, layer_decay=0.5))
    names = ("stem.0.weight", "stem.1.weight", "body.embed.weight", "body.blocks.0.0.weight", "body.head.weight")
    assert [found[name]["lr"] for name in names] == [0.5**4, 0.5**4, 0.5**4, 0.5**3, 1.0]
