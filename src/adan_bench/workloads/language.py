"""Language models on tokens and bytes: GPT-2, mixtures of experts, BERT and its fine-tuning on GLUE (arXiv:1804.07461).

gpt2-code: at paper scale the model and batches of the authors' published arguments; no token comes again before all
have come once. moe: Mixtral (arXiv:2401.04088), 2 of 8 experts at work on a token. The paper states totals of
parameters (0.5B, elsewhere 1.3B; 2B; 4B) and tokens of RedPajama-v2, each seen once, and no more: the shapes here have
those totals.

pycode-*: GPTs over bytes of Python source. small: the source of all packages that are installed here, up to 400 MB; a
file's content decides whether it is held out. With the option `text` = "debian", Debian's documentation; = "both",
both. smoke: Python's own library. Windows are drawn at random.

bert-pretrain: Fairseq's setting, which the paper takes: masked words alone, no next sentence. A row is the next 511
tokens of the text; Fairseq's breaks off at the end of a sentence. glue-*: at paper scale as in the authors'
configurations (MRPC, which they left out, has Fairseq's, and a target of ours); a pair of sentences is `<s> a </s></s>
b </s>`. The score is that of the development split; trials hold out every eighth example of the training split
instead. Smoke needs no files: its sentences are generated, and the note says from what.

english-*: a smaller BERT on word pieces, and its encoder fine-tuned. small: the prose of the packages that are
installed here or, with the option `text` = "debian", Debian's documentation. smoke: that of Python's own library, and
generated sentences. SST-2's trials look at the development split, its results at the test split; CoLA, of which no
test split has answers, is treated as in glue-*.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from adan_bench.task import Scale
from adan_bench.workloads.registry import built_by, workload

by_loss = partial(workload, metric="loss", higher_is_better=False)

REDPAJAMA = "redpajama"  # the folder of the mixtures of experts; BERT's is "text"


@dataclass(frozen=True)
class TextSizes:
    """The model, and its text.

    length: tokens per sequence, or bytes that a prediction can depend on; deviation: of the first weights; held_out:
    rows of an evaluation; experts: of every layer, 0 for one MLP; expert: its width; key_heads: of keys and values.
    """

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int = 256
    dropout: float = 0.0
    deviation: float = 0.02
    held_out: int = 256
    experts: int = 0
    expert: int = 0
    key_heads: int = 0


# GPT-2

by_loss(
    "gpt2-code",
    smoke=Scale(5.2, 120, 16, eval_every=40, sizes=TextSizes(2, 64, 4, 64, 512, held_out=64)),
    small=Scale(3.5, 1000, 32, sizes=TextSizes(6, 320, 5, 256, 8192)),
    # the paper gives no loss: 1 nat per token is about what such models reach on code
    paper=Scale(1.0, 150_000, 400, 1000, ("code",), TextSizes(24, 1024, 16, 2048, 50_000, 0.1)),
    summary="GPT-2 on Python code: a folder in The Stack's layout, or the standard library's source",
)(built_by("gpt", "gpt2_code"))

by_loss(
    "pycode-gpt2",
    smoke=Scale(2.8, 160, 16, sizes=TextSizes(2, 64, 4, 64, held_out=128)),
    summary="GPT-2 (2 layers of width 64, 64 bytes of context) on the standard library's own source",
)(built_by("gpt", "pycode_gpt2"))

# Mixtures of experts

#: By the paper's names: training and timing build the same models.
MIXTURES = {
    "8x0.1B": TextSizes(12, 768, 12, 2048, 32_000, experts=8, expert=1952, key_heads=4),
    "8x0.3B": TextSizes(24, 1024, 16, 2048, 32_000, experts=8, expert=3136, key_heads=8),
    "8x0.6B": TextSizes(32, 1280, 20, 2048, 32_000, experts=8, expert=3840, key_heads=4),
}

# Steps for the fewest tokens that the paper gives the model, and AdamW's training loss there.
for _name, _size, _steps, _adamw in (
    ("moe", "8x0.1B", 19_073, 2.722),
    ("moe-8x0.3b", "8x0.3B", 57_220, 2.362),
    ("moe-8x0.6b", "8x0.6B", 572_205, 2.023),
):
    _smoke = TextSizes(2, 48, 4, 48, 512, held_out=64, experts=8, expert=64, key_heads=2)
    by_loss(
        _name,
        smoke=Scale(5.3, 100, 8, eval_every=25, sizes=_smoke),
        small=Scale(3.5, 1000, 32, sizes=TextSizes(6, 256, 8, 256, 8192, experts=8, expert=512, key_heads=4)),
        paper=Scale(_adamw, _steps, 256, 500, (REDPAJAMA,), MIXTURES[_size]),
        summary=f"Mixtral of {_size} on a folder of RedPajama, every token once, or on the standard library's source",
    )(built_by("gpt", "moe"))

for _name, _about, _sizes, _batch_size, _steps, _target in (
    ("gpt-1m", "GPT of 0.9 M", TextSizes(4, 128, 4, 128), 32, 2000, 1.5),
    ("gpt-11m", "GPT of 10.9 M", TextSizes(6, 384, 6, 256), 64, 2000, 1.0),
    ("gpt-26m", "GPT of 25.7 M", TextSizes(8, 512, 8, 512), 32, 3000, 0.9),
    ("gpt-117m", "GPT of 117 M", TextSizes(12, 896, 14, 1024), 128, 3000, 0.7),
    ("moe", "GPT of 4 layers with 8 experts each, 4.5 M,", TextSizes(4, 128, 4, 128, experts=8), 32, 2000, 1.5),
):
    by_loss(
        f"pycode-{_name}",
        smoke=Scale(3.0, 100, 16, eval_every=20, sizes=TextSizes(2, 32, 2, 64, experts=_sizes.experts)),
        small=Scale(_target, _steps, _batch_size, _steps // 20, sizes=_sizes),
        options=("text",),
        summary=f"{_about} on the bytes of installed Python source",
    )(built_by("gpt", "pycode_gpt"))

# BERT

SMOKE = TextSizes(2, 64, 4, 40, 1024, deviation=0.1, held_out=64)
SMALL = TextSizes(4, 256, 4, 128, 8192, 0.1)
PAPER = TextSizes(12, 768, 12, 512, 50_000, 0.1)

by_loss(
    "bert-pretrain",
    smoke=Scale(6.3, 150, 16, eval_every=50, sizes=SMOKE),
    small=Scale(5.5, 1500, 64, sizes=SMALL),
    # the paper gives no loss of the pre-training: 2 nats per masked token is about what BERT-base reaches
    paper=Scale(2.0, 1_000_000, 256, 10_000, ("text",), PAPER),
    summary="BERT on masked words of a text folder, or of the standard library's documentation",
)(built_by("bert", "pretraining"))

ENTAILMENT = ("not_entailment", "entailment")
BINARY = ("0", "1")
PAIR = ("sentence1", "sentence2")


@dataclass(frozen=True)
class GlueTask:
    """One task of GLUE: its files, where the sentences and the answer are, and how the paper's run was.

    columns: names in the header, or places where the files have none; the answer's is last.
    labels: the answers in the order of their numbers; () for a score from 0 to 5.
    adam: the paper's reproduced figure; size: of the training split.
    """

    name: str
    folder: str
    metric: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    adam: float
    steps: int
    size: int
    clip: float | None = None
    batch_size: int = 16
    places: tuple[int, ...] = ()
    dev: tuple[str, ...] = ("dev.tsv",)

    @property
    def epoch(self) -> int:
        """Updates between evaluations at paper scale: Fairseq looks after every epoch."""
        return -(-self.size // self.batch_size)

    def files(self, *names: str) -> tuple[str, ...]:
        return tuple(f"glue/{self.folder}/{name}" for name in names)

    def smoke(self, sizes: TextSizes) -> Scale:
        return Scale(0.4 if self.metric == "matthews" else 0.7, 80, 32, eval_every=20, sizes=sizes)


MNLI = ("contradiction", "neutral", "entailment")
MNLI_DEV = ("dev_matched.tsv", "dev_mismatched.tsv")
COLA = GlueTask("cola", "CoLA", "matthews", (), BINARY, 0.585, 5336, 8551, places=(3, 1))
SST2 = GlueTask("sst2", "SST-2", "accuracy", ("sentence", "label"), BINARY, 0.926, 20935, 67_349, None, 32, (0, 1))
KINDS = [
    COLA,
    SST2,
    GlueTask("mnli", "MNLI", "accuracy", (*PAIR, "gold_label"), MNLI, 0.849, 123_873, 392_702, 1.0, dev=MNLI_DEV),
    GlueTask("qnli", "QNLI", "accuracy", ("question", "sentence", "label"), ENTAILMENT, 0.908, 33_112, 104_743),
    GlueTask("qqp", "QQP", "accuracy", ("question1", "question2", "is_duplicate"), BINARY, 0.909, 113_272, 363_846),
    GlueTask("rte", "RTE", "accuracy", (*PAIR, "label"), ENTAILMENT, 0.693, 2036, 2490),
    GlueTask("mrpc", "MRPC", "accuracy", ("#1 String", "#2 String", "Quality"), BINARY, 0.86, 2296, 3668),
    GlueTask("stsb", "STS-B", "pearson", (*PAIR, "score"), (), 0.887, 3598, 5749, clip=0.5),
]

for _kind in KINDS:
    _files = _kind.files("train.tsv", *_kind.dev)
    workload(
        f"glue-{_kind.name}",
        metric=_kind.metric,
        higher_is_better=True,
        after="bert-pretrain",
        smoke=_kind.smoke(SMOKE),
        small=Scale(0.05 if _kind is COLA else 0.7, 2000, 32, needs=_files, sizes=SMALL),
        paper=Scale(_kind.adam, _kind.steps, _kind.batch_size, _kind.epoch, (*_files, "text"), PAPER),
        summary=f"BERT fine-tuned on GLUE's {_kind.folder}, {_kind.metric} on the development split",
    )(built_by("bert", "finetuning", _kind))

# A smaller BERT on English

ENGLISH_SMOKE = TextSizes(2, 32, 2, 64, 1_000)
ENGLISH = TextSizes(4, 256, 4, 128, 8_000)

by_loss(
    "english-bert",
    smoke=Scale(6.5, 100, 16, eval_every=20, sizes=ENGLISH_SMOKE),
    small=Scale(2.8, 8000, 128, eval_every=400, sizes=ENGLISH),
    options=("text",),
    summary="BERT of 4 layers on masked word pieces of English prose: of installed packages, or Debian's documentation",
)(built_by("english", "pretraining"))

for _kind, _small in (  # ten epochs each
    (COLA, Scale(0.1, 2670, 32, needs=COLA.files("train.tsv", "dev.tsv"), sizes=ENGLISH)),
    (SST2, Scale(0.77, 2160, 32, needs=SST2.files("train.tsv", "dev.tsv", "test.tsv"), sizes=ENGLISH)),
):
    workload(
        f"english-{_kind.name}",
        metric=_kind.metric,
        higher_is_better=True,
        after="english-bert",
        smoke=_kind.smoke(ENGLISH_SMOKE),
        small=_small,
        options=("text",),
        summary=f"BERT of 4 layers on English, fine-tuned on GLUE's {_kind.folder}",
    )(built_by("english", "finetuning", _kind))
