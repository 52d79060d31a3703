"""Columns of words, perplexity, the files of Penn Treebank and WikiText-103, and the models trained on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import transformer_xl
from support.learning import prepared, resize, settings, sizes
from torch import Tensor

from adan_bench.data.words import Stream, encode, file_words, perplexity, vocabulary
from adan_bench.errors import UsageError
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.parts.lstm import LSTM
from adan_bench.workloads.parts.transformer_xl import TransformerXL
from adan_bench.workloads.registry import get_workload
from adan_bench.workloads.words import LstmSizes, XLSizes


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Penn Treebank and WikiText-103 in small, as they are on disk."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ptb").mkdir()
    (folder / "wikitext-103").mkdir()
    for split, times in (("train", 800), ("valid", 40), ("test", 42)):
        (folder / "ptb" / f"ptb.{split}.txt").write_text(" the cat <unk> sat on the mat \n" * times, encoding="utf-8")
        article = " \n = The = Cat = \n \n The cat @-@ like <unk> sat , on the mat . \n"
        (folder / "wikitext-103" / f"wiki.{split}.tokens").write_text(article * times, encoding="utf-8")
    return folder


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("length", [4, 7, 50])
def test_perplexity_counts_every_word(batch_size: int, length: int) -> None:
    """Even logits over eight words have perplexity 8; a wrong share of the last, shorter row would show."""
    words = torch.arange(62, dtype=torch.int32) % 8
    seen: list[int] = []

    def uneven(part: Tensor, following: Tensor, carry: Any) -> tuple[Tensor, Any]:
        assert carry == (None if not seen else len(seen))
        seen.append(part.numel())
        logits = torch.zeros(*part.shape, 8) + (part == 0).unsqueeze(-1) * torch.tensor([5.0] + [0.0] * 7)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten()), len(seen)

    def even(part: Tensor, following: Tensor, carry: Any) -> tuple[Tensor, Any]:
        return F.cross_entropy(torch.zeros(following.numel(), 8), following.flatten()), None

    found = perplexity(uneven, words, batch_size, length, "cpu")
    assert sum(seen) == (62 // batch_size - 1) * batch_size
    seen.clear()
    assert found == pytest.approx(perplexity(uneven, words, batch_size, 10**6, "cpu"))
    assert perplexity(even, words, batch_size, length, "cpu") == pytest.approx(8)


def test_stream_reads_downward_and_starts_anew() -> None:
    stream, other = (Stream(torch.arange(23), batch_size=2, length=3, carry=[torch.zeros(2)]) for _ in range(2))

    def gathered(position: int) -> Any:
        return stream.gather(stream(position))

    words, following, carry = gathered(0)
    assert words.t().tolist() == [[0, 1, 2], [11, 12, 13]]
    assert following.t().tolist() == [[1, 2, 3], [12, 13, 14]]
    assert carry[0].tolist() == [0, 0]
    assert gathered(1)[0].t().tolist() == [[3, 4, 5], [14, 15, 16]]
    memory = stream.carry[0].data_ptr()
    stream.keep([torch.ones(2)])
    before = gathered(1)[2]
    stream.keep([torch.full((2,), 5.0)])  # in the same memory, but not in that of the batch
    assert stream.carry[0].data_ptr() == memory
    assert (before[0].tolist(), gathered(2)[2][0].tolist()) == ([1, 1], [5, 5])
    assert gathered(stream.per_epoch)[2][0].tolist() == [0, 0]
    other.load_state_dict(stream.state_dict())
    assert other.gather(other(2))[2][0].tolist() == [5, 5]
    assert stream.rate(1) == 1
    with pytest.raises(UsageError, match="batch_size=12: 23 words are too few"):
        Stream(torch.arange(23), batch_size=12, length=3)


def test_random_rows_are_those_of_awd_lstm() -> None:
    """Normal around 70, or around 35 in one of twenty, none below five; each epoch covers the text; a pure function."""
    words = torch.arange(200_000)
    stream, other = (Stream(words, 2, 70, random_rows=seed) for seed in (0, 1))
    assert stream(2_000) == Stream(words, 2, 70, random_rows=0)(2_000)
    rows = [stream.row(i) for i in range(10_000)]
    lengths = torch.tensor([length for _, length in rows], dtype=torch.float64)
    short = lengths < 52
    assert short.double().mean() == pytest.approx(0.05, abs=0.01)
    assert (lengths[~short].mean(), lengths[~short].std()) == (pytest.approx(69.5, abs=0.3), pytest.approx(5, abs=0.3))
    assert lengths[short].mean() == pytest.approx(34.5, abs=1)
    assert rows != [other.row(i) for i in range(10_000)]
    first = next(i for i in range(1, 2_000) if rows[i][0] == 0)
    assert torch.cat([stream.gather(stream(i))[0] for i in range(first)]).t().flatten().tolist() == [
        *range(99_999),
        *range(100_000, 199_999),
    ]
    assert 100_000 / first == pytest.approx(67.75, abs=0.7)  # what RANDOM_EPOCH rests on
    assert stream.rate(3) == rows[3][1] / 70


def test_the_rate_of_an_update_is_in_proportion_to_its_row(data: Path) -> None:
    trainer = Trainer(
        settings("lstm-1", scale="paper", data=data, schedule="constant", warmup=0.0, training={"random_rows": True})
    )
    rates = []
    for position in range(3):
        trainer.update()
        rate = trainer.optimizer.param_groups[0]["lr"]
        assert rate == pytest.approx(trainer.updater.base_lr[0] * trainer.task.batches.row(position)[1] / 70)
        rates.append(rate)
    assert len(set(rates)) > 1


@pytest.mark.parametrize("fixed", [True, False])
def test_fixed_recurrent_weights_keep_their_initial_values(fixed: bool) -> None:
    trainer = Trainer(settings("lstm-2", training={"fixed_recurrent": fixed}))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.update()
    same = {name for name, value in trainer.model.state_dict().items() if torch.equal(value, before[name])}
    assert same == ({"layers.0.weight_hh_l0", "layers.1.weight_hh_l0"} if fixed else set())


def test_words_of_files(tmp_path: Path) -> None:
    file = tmp_path / "wiki.train.tokens"
    file.write_text(" a b a \n \n <unk> c \n", encoding="utf-8")
    words = list(file_words(file))
    assert words == ["a", "b", "a", "<eos>", "<eos>", "<unk>", "c", "<eos>"]
    known = vocabulary(words, 3)
    assert known == {"<unk>": 0, "<eos>": 1, "a": 2}
    assert encode(["a", "b", "<eos>"], known).tolist() == [2, 0, 1]
    file.write_bytes(b"")
    with pytest.raises(UsageError, match=r"wiki.train.tokens is empty"):
        list(file_words(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"wiki.train.tokens: not a text file"):
        list(file_words(file))


def test_lstm_drops_recurrent_weights_and_carries_state() -> None:
    torch.manual_seed(0)
    model = LSTM(50, 2, LstmSizes(embedding=16, hidden=24))
    words = torch.randint(50, (6, 3))
    logits, carry, penalty = model(words, None)
    (logits.square().mean() + penalty).backward()
    grad = model.layers[0].weight_hh_l0.grad
    assert isinstance(grad, Tensor)
    assert (grad == 0).float().mean() == pytest.approx(0.5, abs=0.1)
    model.eval()
    with torch.no_grad():
        whole = model(words, None)[0]
        first, state, _ = model(words[:4], None)
        second = model(words[4:], state)[0]
    torch.testing.assert_close(torch.cat([first, second]), whole)
    assert not torch.allclose(model(words[4:], None)[0], second)
    assert [tuple(t.shape) for t in carry] == [(2, 3, 24), (2, 3, 16)]


def test_memory_is_context() -> None:
    """Two halves with memory between have the loss of the whole: what the memory holds is attended to."""
    torch.manual_seed(0)
    model = TransformerXL(60, sizes("transformer-xl", "smoke")).eval()
    words = torch.randint(60, (41, 2))
    following, words = words[1:], words[:-1]
    with torch.no_grad():
        whole, _ = model(words, following)
        first, memories = model(words[:20], following[:20])
        second, _ = model(words[20:], following[20:], memories=memories)
        alone, _ = model(words[20:], following[20:])
    torch.testing.assert_close((first + second) / 2, whole, rtol=1e-6, atol=0)
    assert (alone - second).abs() > 1e-5


def test_transformer_xl_follows_the_published_formulas() -> None:
    """Against sums over single queries and keys: relative attention, memory that fills up, adaptive softmax."""
    torch.manual_seed(0)
    small = XLSizes(layers=3, width=12, heads=2, inner=20, dropout=0.3, length=4, memory=6, cutoffs=(7, 10))
    model = TransformerXL(15, small).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    text = torch.randint(15, (13, 2))
    memories, past = None, [torch.zeros(0, 2, 12, dtype=torch.float64)] * 3
    for start in (0, 4, 8):
        words, following = text[start : start + 4], text[start + 1 : start + 5]
        padded, before = model.tails_of(following, [8, 8]), memories
        loss, memories = model(words, following, memories=before)
        expected, past = transformer_xl.loss(dict(model.named_parameters()), words, following, past, heads=2, memory=6)
        torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
        torch.testing.assert_close(model(words, following, padded, before)[0], loss, rtol=1e-12, atol=0)
        kept, filled = memories
        assert filled == len(past[0])
        torch.testing.assert_close(kept[:, -len(past[0]) :], torch.stack(past), rtol=1e-12, atol=1e-12)


def test_transformer_xl_drops_where_published() -> None:
    """Words, positions, attention's output, both feed-forward layers and the last hidden layer; not the weights."""
    model = TransformerXL(60, replace(sizes("transformer-xl", "smoke"), dropout=0.25))
    shares: list[float] = []
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda m, i, out: shares.append((out == 0).float().mean().item()))
    words = torch.randint(60, (32, 8))
    model(words, words)
    assert len(shares) == 3 + 3 * 2
    assert all(share > 0.15 for share in shares)


def test_transformer_xl_batches_have_one_shape() -> None:
    """From the first of an epoch on, so that a step can be captured; the padding counts for nothing."""
    task = get_workload("transformer-xl").task(batch_size=4)

    def shapes(batch: Any) -> Any:
        return tuple(batch.shape) if isinstance(batch, Tensor) else [shapes(part) for part in batch]

    stream: Any = task.batches
    batches = [task.prepare(stream(position)) for position in (0, 1, 2, stream.per_epoch)]
    assert all(shapes(batch) == shapes(batches[0]) for batch in batches)
    words, following, tails, memories = batches[1]
    assert sum(int((answers >= 0).sum()) for _, answers in tails) == int((following >= 32).sum())
    model: Any = task.model
    torch.testing.assert_close(model(words, following, tails, memories)[0], model(words, following, None, memories)[0])


def test_paper_scale_reads_the_real_layouts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A narrower Transformer-XL, as deep and with as long a memory as the paper's."""
    lstm = get_workload("lstm-1", "paper").task(batch_size=20, data=data)
    assert "6,400 words to train" in lstm.note
    assert prepared(lstm, 0, "cpu")[0].shape == (70, 20)
    assert lstm.max_grad_norm == 0.25
    resize(monkeypatch, "transformer-xl", replace(sizes("transformer-xl"), width=40, heads=4, inner=80))
    trainer = Trainer(settings("transformer-xl", scale="paper", data=data, batch_size=2, steps=2))
    assert prepared(trainer.task, 0, "cpu")[0].shape == (150, 2)
    assert "14 different" in trainer.task.note
    trainer.update()
    memories, filled = prepared(trainer.task, 1, "cpu")[3]
    assert (tuple(memories.shape), int(filled)) == ((16, 150, 2, 40), 150)


@pytest.mark.parametrize(
    ("scale", "tuning", "columns"), [("small", False, 10), ("paper", False, 1), ("paper", True, 10)]
)
def test_results_are_of_the_test_split_and_trials_of_the_other(
    scale: str, tuning: bool, columns: int, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One column of words at paper scale, as AdaBelief's code evaluates the test split."""
    seen: list[tuple[int, int]] = []
    for module in ("lstm", "transformer_xl"):
        monkeypatch.setattr(
            f"adan_bench.workloads.parts.{module}.perplexity",
            lambda step, text, count, *_: float(seen.append((len(text), count)) or 1),
        )
    for name in ("lstm-1", "transformer-xl"):
        if name == "lstm-1" or scale == "small":
            task = get_workload(name, scale).task(batch_size=20, data=data, tuning=tuning)
            assert list(task.evaluate(task.model)) == ["perplexity"]
    lengths = {"valid": 40 * 8, "test": 42 * 8}
    assert seen[0] == (lengths["valid" if tuning else "test"], columns)
    assert seen[1:] == [(lengths["test"], 10)] * (scale == "small")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"transformer-xl needs wikitext-103/wiki.train.tokens"):
        settings("transformer-xl", scale="paper", data=tmp_path)
    (tmp_path / "wikitext-103").mkdir()
    (tmp_path / "wikitext-103" / "wiki.train.tokens").write_text("a\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"holds no wikitext-103/wiki.valid.tokens"):
        get_workload("transformer-xl", "paper").task(batch_size=2, data=tmp_path)
