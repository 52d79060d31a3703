"""Tokenizers, folders of text and code, and the language models that read them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.learning import prepared, resize, settings

from adan_bench.data import tokens
from adan_bench.data.batching import prefetch
from adan_bench.data.corpus import Corpus
from adan_bench.data.tokens import END, PAD, SPECIAL, Reader, folder_tokenizer, masking_tokenizer, name, train_tokenizer
from adan_bench.errors import UsageError
from adan_bench.task import Context
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.language import TextSizes
from adan_bench.workloads.parts import bert, gpt
from adan_bench.workloads.registry import get_workload

TEXTS = [f"def number_{i}(x):\n    return x + {i}  # é{'ü' * (i % 3)}\n" * 5 for i in range(60)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text files, one of code in The Stack's layout and one in those of both RedPajamas."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    folder = tmp_path_factory.mktemp("data")
    (folder / "text" / "wiki").mkdir(parents=True)
    (folder / "code").mkdir()
    for i in range(6):
        (folder / "text" / "wiki" / f"{i}.txt").write_text("".join(TEXTS[10 * i : 10 * i + 10]), encoding="utf-8")
    rows = [{"hexsha": str(i), "content": text, "lang": "Python"} for i, text in enumerate(TEXTS)]
    parquet.write_table(pa.Table.from_pylist(rows), folder / "code" / "train-00000.parquet", row_group_size=20)
    (folder / "redpajama" / "documents" / "2023-06").mkdir(parents=True)
    lines = {"documents/2023-06/en_head.json.gz": ("raw_content", TEXTS[:30]), "arxiv.jsonl.zst": ("text", TEXTS[30:])}
    for file, (key, texts) in lines.items():
        content = "".join(json.dumps({"url": "x", key: text}) + "\n" for text in texts)
        how = {".gz": "gzip", ".zst": "zstd"}[Path(file).suffix]
        with pa.CompressedOutputStream(str(folder / "redpajama" / file), how) as packed:
            packed.write(content.encode())
    return folder


def reader(corpus: Corpus, once: bool = False, length: int = 30, held_out: int = 8, **options: Any) -> Reader:
    context = Context(**{"batch_size": 4, "seed": 0, "sizes": TextSizes(1, 1, 1, 1, held_out=held_out), **options})
    return Reader(corpus, train_tokenizer(TEXTS, 300), length, context, once)


def test_tokenizer_is_the_same_in_every_process() -> None:
    """Fine-tuning derives it anew from the text of the pre-training."""
    texts = [f"number {i} of {i * i} words, {chr(97 + i % 26) * (i % 7)}" for i in range(500)]
    code = f"from adan_bench.data.tokens import name, train_tokenizer\nprint(name(train_tokenizer({texts!r}, 600)))"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    there = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert there.strip() == name(train_tokenizer(texts, 600))
    tokenizer = train_tokenizer(TEXTS, 300)
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
    assert tokenizer.decode(tokenizer.encode(TEXTS[7]).ids) == TEXTS[7]


def test_corpus_reads_across_files(data: Path) -> None:
    corpus = Corpus(data / "text")
    files = ["".join(TEXTS[10 * i : 10 * i + 10]) for i in range(6)]
    assert corpus.size == sum(len(text.encode()) + 1 for text in files)
    assert corpus.documents(0, corpus.size) == [*files, ""]
    first = corpus.ends[0]
    assert corpus.documents(first - 11, first + 10) == [files[0].encode()[-10:].decode(), files[1][:10]]
    assert corpus.documents(5, 20) == [files[0].encode()[5:20].decode()]  # which does not end there


def test_rows_come_once_each(data: Path) -> None:
    """All positions of an epoch together read every row, in another order than that of the files."""
    source = reader(Corpus(data / "text"), once=True, batch_size=1)
    in_order = [source._tokens([row])[0].tolist() for row in range(source.rows)]
    seen = [source(position)[0].tolist() for position in range(source.per_epoch)]
    assert sorted(seen) == sorted(in_order)
    assert seen != in_order
    with pytest.raises(UsageError, match=rf"{source.per_epoch} batches of 1 are all that it has; use fewer --steps"):
        source(source.per_epoch)
    held_out = source.held_out().tolist()
    assert len(held_out) == source.last
    assert not [row for row in held_out if row in seen]
    again = reader(Corpus(data / "text"), batch_size=1)
    assert again(again.per_epoch + 3).shape == (1, 30)
    epochs = [[again.place(epoch, i) for i in range(again.rows)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    assert sorted(epochs[0]) == sorted(epochs[1])


def test_trials_see_no_row_that_is_held_out_from_runs(data: Path) -> None:
    run, trial = (reader(Corpus(data / "text"), batch_size=1, tuning=tuning) for tuning in (False, True))
    kept = {*range(run.first_held_out, run.first_held_out + run.last)}
    judged = {*range(trial.first_held_out, trial.first_held_out + trial.last)}
    trained = {trial.place(0, i) for i in range(trial.rows)}
    assert len(kept) == len(judged) == run.last
    assert not kept & judged
    assert not trained & (kept | judged)


def test_padding_is_not_predicted() -> None:
    logits = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(0))
    model: Any = SimpleNamespace(logits=logits)
    found = tokens.next_token_loss(lambda rows: model, torch.tensor([[3, 4, 5, PAD, PAD]]), PAD)
    assert torch.equal(found, F.cross_entropy(logits[0, :2], torch.tensor([4, 5])))


def test_batches_depend_on_the_position_alone(data: Path) -> None:
    source = reader(Corpus(data / "text"))
    thread = prefetch(source)
    for position in (0, 1, 2, 7, 1, 0):
        assert torch.equal(thread(position), source(position))
    other = reader(Corpus(data / "text"), seed=1)
    assert not torch.equal(other(0), source(0))


@pytest.mark.parametrize(("folder", "parts"), [("code", 3), ("redpajama", 2)])
def test_documents_of_packed_files(folder: str, parts: int, data: Path) -> None:
    """The Stack's parquet, RedPajama's JSON lines: every document ends with a token of its own, as the authors' do."""
    corpus = Corpus(data / folder)
    assert [part.group is None for part in corpus.parts] == [False] * parts
    documents = corpus.documents(0, corpus.size)
    assert sorted(documents) == sorted(["", *TEXTS])
    source = reader(corpus, length=20_000, batch_size=1, held_out=1)
    (ids,) = source._encoded([(0, corpus.size)])
    assert ids.count(END) == len(TEXTS)
    source = reader(corpus)
    rows = torch.cat([source(0), source(1)])
    assert len({tuple(row) for row in rows.tolist()}) == 8
    assert (rows != PAD).float().mean() > 0.9


@pytest.mark.parametrize("folder", ["code", "redpajama"])
def test_packed_files_are_shuffled(folder: str, data: Path) -> None:
    """Blocks as large as what is decoded at once, and the rows of those that are kept; a new order each epoch."""
    corpus = Corpus(data / folder)
    source = reader(corpus, batch_size=1)
    assert source.block > 1
    for kept in (1, 2, 100):
        corpus.kept = kept
        orders = [[source.place(epoch, i) for i in range(source.rows)] for epoch in (0, 1)]
        assert all(sorted(order) == [*range(source.rows)] for order in orders)
        assert orders[0] != orders[1]
        assert all(order != sorted(order) for order in orders)
        first = orders[0][: kept * source.block]  # the first rows touch so many blocks and no more
        assert len({row // source.block for row in first}) == min(kept, source.blocks)
    assert sum(b == a + 1 for a, b in zip(orders[0], orders[0][1:], strict=False)) < source.rows / 4
    assert source.rows <= source.first_held_out < source.rows + source.blocks


def test_bad_folders_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    with pytest.raises(
        UsageError, match=r"no text in .txt, .py, .parquet, .jsonl, .jsonl.gz, .*files; it holds: nothing"
    ):
        Corpus(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(UsageError, match=r"a.parquet: not a parquet file"):
        Corpus(tmp_path)
    parquet.write_table(pa.table({"code": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(UsageError, match=r"a.parquet: no column content or text or raw_content; it has: code"):
        Corpus(tmp_path)
    (tmp_path / "a.parquet").rename(tmp_path / "a.jsonl.zst")
    with pytest.raises(UsageError, match=r"a.jsonl.zst: not JSON lines with one document in each .*; get it again"):
        Corpus(tmp_path).documents(0, 100)
    (tmp_path / "a.jsonl.zst").unlink()
    (tmp_path / "a.txt").write_text("few words", encoding="utf-8")
    with pytest.raises(UsageError, match=r"10 bytes are too few for 4 rows of 30 tokens"):
        reader(Corpus(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match=r"tokenizer.json: no tokenizer of tokenizers .*; remove it to"):
        folder_tokenizer(Corpus(tmp_path), 300)


def test_own_tokenizer_is_taken(data: Path, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    (tmp_path / "a.txt").write_text("".join(TEXTS), encoding="utf-8")
    mine = train_tokenizer(TEXTS[:3], 280)
    mine.save(str(tmp_path / "tokenizer.json"))
    assert folder_tokenizer(Corpus(tmp_path), 300).to_str() == mine.to_str()
    Tokenizer(models.BPE()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"its tokenizer must begin with <s> <pad> </s> <mask>"):
        masking_tokenizer(Corpus(tmp_path), 300)
    with pytest.raises(
        UsageError, match=r"its tokenizer has no </s> or <\|endoftext\|>; remove it to have one trained"
    ):
        Reader(
            Corpus(tmp_path),
            folder_tokenizer(Corpus(tmp_path), 300),
            30,
            Context(0, 4, sizes=SMALL["gpt2-code"]),
            False,
        )


def test_the_authors_tokenizer_is_taken(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2's files with <|endoftext|> first and no padding: no word counts as padding, and documents end."""
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path / "code"
    shutil.copytree(data / "code", folder)
    authors = ByteLevelBPETokenizer()
    authors.train_from_iterator(TEXTS, 300, special_tokens=["<|endoftext|>"], show_progress=False)
    authors.save_model(str(folder))
    corpus = Corpus(folder)
    found = folder_tokenizer(corpus, 999)
    assert (found.get_vocab_size(), found.token_to_id("<|endoftext|>")) == (300, 0)
    assert found.decode(found.encode(TEXTS[7]).ids) == TEXTS[7]
    with pytest.raises(UsageError, match=r"its tokenizer must begin with"):
        masking_tokenizer(corpus, 300)
    resize(monkeypatch, "gpt2-code", SMALL["gpt2-code"])
    trainer = Trainer(settings("gpt2-code", scale="paper", data=tmp_path, batch_size=8, steps=4))
    task: Any = trainer.task
    assert (task.end, task.pad, trainer.model.get_input_embeddings().num_embeddings) == (0, 300, 301)
    rows = torch.cat([task.batches(position) for position in range(3)])
    assert (rows == 0).any()
    rows[:, 5:] = 1  # "!", which is our own tokenizer's padding
    logits = trainer.model(rows[:, :-1]).logits
    torch.testing.assert_close(
        task.loss(trainer.model, rows), F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    )


def test_biases_and_norms_do_not_decay_at_paper_scale(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Megatron-LM, where word and position embeddings do; at the other scales all does, as recorded."""
    for workload in ("gpt2-code", "moe"):
        resize(monkeypatch, workload, SMALL[workload])
        trainer = Trainer(settings(workload, scale="paper", data=data, batch_size=8, steps=4))
        decay = {p: group["weight_decay"] for group in trainer.optimizer.param_groups for p in group["params"]}
        assert len(decay) == len(list(trainer.model.parameters()))
        assert all((value > 0) == (p.ndim > 1) for p, value in decay.items())
        assert get_workload(workload).task(batch_size=2).groups is None


SMALL = {
    "gpt2-code": TextSizes(1, 16, 2, 24, 300),
    "moe": TextSizes(1, 16, 2, 24, 300, experts=8, expert=16, key_heads=1),
    "bert-pretrain": TextSizes(1, 16, 2, 24, 300),
}


@pytest.mark.parametrize("workload", SMALL)
def test_paper_scale_streams_a_folder(workload: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader as it is, a model that fits here."""
    resize(monkeypatch, workload, SMALL[workload])
    trainer = Trainer(settings(workload, scale="paper", data=data, batch_size=8, steps=4))
    before = trainer.evaluate()["loss"]
    for _ in range(3):
        trainer.update()
    assert trainer.evaluate()["loss"] < before
    assert "bytes" in trainer.task.note
    with pytest.raises(UsageError, match=f"{workload} needs (text|code|redpajama)"):
        settings(workload, scale="paper", data=data / "text")


def test_masking() -> None:
    words = torch.randint(4, 1000, (200, 100), generator=torch.Generator().manual_seed(1))
    words[:, :2] = torch.tensor([0, 1])
    drawn = bert.drawn((200, 100), 1000, torch.Generator().manual_seed(0))
    shown, answers = bert.masked(words, *drawn)
    chosen = answers != bert.IGNORED
    assert not chosen[:, :2].any()
    assert torch.equal(shown[~chosen], words[~chosen])
    assert torch.equal(answers[chosen], words[chosen])
    assert chosen[:, 2:].float().mean() == pytest.approx(0.15, abs=0.01)
    assert (shown == 3)[chosen].float().mean() == pytest.approx(0.8, abs=0.02)
    assert (shown == words)[chosen].float().mean() == pytest.approx(0.1, abs=0.02)


def test_the_activation_is_that_of_gpt2() -> None:
    """0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))), for which transformers' "gelu_new" takes eight kernels."""
    x = torch.linspace(-5, 5, 101, requires_grad=True)
    expected = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    model: Any = get_workload("gpt2-code").task(batch_size=2).model
    found = model.transformer.h[0].mlp.act(x)
    torch.testing.assert_close(found, expected)
    assert found.grad_fn.name() == "GeluBackward0"  # one kernel forward, one backward


def test_the_loss_of_a_compiled_model_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    task = get_workload("gpt2-code").task(batch_size=2)
    rows = prepared(task, 0, "cpu")
    rows[:, -1] = PAD
    expected = task.loss(task.model, rows)
    used: list[Any] = []
    monkeypatch.setattr(tokens, "_compiled_cross_entropy", lambda: used.append(1) or tokens._cross_entropy)
    assert torch.equal(task.loss(task.model, rows), expected)
    assert not used
    compiled: Any = torch.compile(task.model, backend="eager")
    torch.testing.assert_close(task.loss(compiled, rows), expected)
    assert used


def test_experts_are_balanced_while_training_only() -> None:
    task = get_workload("moe").task(batch_size=4)
    rows = prepared(task, 0, "cpu")
    out = task.model(rows[:, :-1])
    plain = F.cross_entropy(out.logits.flatten(0, 1), rows[:, 1:].flatten())
    assert out.aux_loss > 1
    torch.testing.assert_close(task.loss(task.model, rows), plain + gpt.BALANCE * out.aux_loss)
