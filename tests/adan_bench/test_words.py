"""Columns of words, perplexity, the files of Penn Treebank and WikiText-103, and the models trained on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.learning import settings, sizes
from torch import Tensor

from adan_bench.data.batching import prepared
from adan_bench.data.words import Stream, encode, file_words, perplexity, vocabulary
from adan_bench.spec import UsageError
from adan_bench.training.trainer import Trainer
from adan_bench.workloads.lstm import Sizes
from adan_bench.workloads.parts.lstm import LSTM
from adan_bench.workloads.parts.transformer_xl import TransformerXL
from adan_bench.workloads.registry import get_workload


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Penn Treebank and WikiText-103 in small, as they are on disk."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "ptb").mkdir()
    (folder / "wikitext-103").mkdir()
    for split, times in (("train", 800), ("valid", 40), ("test", 40)):
        (folder / "ptb" / f"ptb.{split}.txt").write_text(" the cat <unk> sat on the mat \n" * times)
        article = " \n = The = Cat = \n \n The cat @-@ like <unk> sat , on the mat . \n"
        (folder / "wikitext-103" / f"wiki.{split}.tokens").write_text(article * times)
    return folder


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("length", [4, 7, 50])
def test_perplexity_counts_every_word(batch_size: int, length: int) -> None:
    """Even logits over eight words have perplexity 8; a wrong share of the last, shorter row would show."""
    words = torch.arange(62, dtype=torch.int32) % 8
    seen = []

    def step(part: Tensor, carry: Any) -> tuple[Tensor, Any]:
        assert carry == (None if not seen else len(seen))
        seen.append(part.numel())
        return torch.zeros(*part.shape, 8) + (part == 0).unsqueeze(-1) * torch.tensor([5.0] + [0.0] * 7), len(seen)

    found = perplexity(step, words, batch_size, length, "cpu")
    assert sum(seen) == (62 // batch_size - 1) * batch_size
    whole = perplexity(lambda part, carry: step(part, None if not seen else len(seen)), words, batch_size, 10**6, "cpu")
    assert found == pytest.approx(whole)
    assert perplexity(lambda part, _: (torch.zeros(*part.shape, 8), None), words, batch_size, length, "cpu") == (
        pytest.approx(8)
    )


def test_stream_reads_downward_and_starts_anew() -> None:
    stream = Stream(torch.arange(23), batch_size=2, length=3)
    words, following, carry = stream.gather(stream(0))
    assert words.t().tolist() == [[0, 1, 2], [11, 12, 13]]
    assert following.t().tolist() == [[1, 2, 3], [12, 13, 14]]
    assert carry is None
    assert stream.gather(stream(1))[0].t().tolist() == [[3, 4, 5], [14, 15, 16]]
    stream.keep([torch.ones(2)])
    assert stream.carry is not None
    memory = stream.carry[0].data_ptr()
    (before,) = stream(1)[1]
    stream.keep([torch.full((2,), 5.0)])  # in the same memory, but not in that of the batch
    assert stream.carry[0].data_ptr() == memory
    assert (before.tolist(), stream(2)[1][0].tolist()) == ([1.0, 1.0], [5.0, 5.0])
    stream.keep([torch.zeros(3)])
    assert stream(1)[1][0].shape == (3,)
    assert stream(stream.per_epoch)[1] is None
    with pytest.raises(UsageError, match="batch_size=12: 23 words are too few"):
        Stream(torch.arange(23), batch_size=12, length=3)


def test_words_of_files(tmp_path: Path) -> None:
    file = tmp_path / "wiki.train.tokens"
    file.write_text(" a b a \n \n <unk> c \n")
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


def test_lstm_is_that_of_adabelief() -> None:
    """24,221,600 parameters is what AWD-LSTM prints for Penn Treebank; its LSTMs are ours."""
    with torch.device("meta"):
        assert sum(p.numel() for p in LSTM(10_000, 3, Sizes()).parameters()) == 24_221_600


def test_lstm_drops_recurrent_weights_and_carries_state() -> None:
    torch.manual_seed(0)
    model = LSTM(50, 2, Sizes(embedding=16, hidden=24))
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
    """Two halves with memory between give the logits of the whole: what the memory holds is attended to."""
    torch.manual_seed(0)
    model = TransformerXL(20, sizes("transformer-xl", "smoke")).eval()
    words = torch.randint(20, (40, 2))
    with torch.no_grad():
        whole = model(words, None)[0]
        first, memories = model(words[:20], None)
        second = model(words[20:], memories)[0]
        alone = model(words[20:], None)[0]
    torch.testing.assert_close(torch.cat([first, second]), whole, rtol=1e-4, atol=1e-4)
    assert (alone - second).abs().max() > 1e-2
    model.train()
    assert model(words, None)[1][0].shape[1] == sizes("transformer-xl", "smoke").memory


def test_transformer_xl_base_has_its_size() -> None:
    """151 million in the paper that introduced it."""
    with torch.device("meta"):
        model = TransformerXL(267_735, sizes("transformer-xl"))
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(151e6, rel=0.03)


def test_paper_scale_reads_the_real_layouts(data: Path) -> None:
    lstm = get_workload("lstm-1", "paper").task(batch_size=20, data=data)
    assert "6,400 words to train" in lstm.note
    assert prepared(lstm, 0, "cpu")[0].shape == (70, 20)
    assert lstm.max_grad_norm == 0.25
    trainer = Trainer(settings("transformer-xl", scale="paper", data=data, batch_size=2, steps=2))
    assert prepared(trainer.task, 0, "cpu")[0].shape == (150, 2)
    assert "14 different" in trainer.task.note
    trainer.update()
    assert [tuple(memory.shape) for memory in prepared(trainer.task, 1, "cpu")[2]] == [(2, 150, 410)] * 16


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"transformer-xl needs wikitext-103/wiki.train.tokens"):
        settings("transformer-xl", scale="paper", data=tmp_path)
    (tmp_path / "wikitext-103").mkdir()
    (tmp_path / "wikitext-103" / "wiki.train.tokens").write_text("a\n")
    with pytest.raises(UsageError, match=r"holds no wikitext-103/wiki.valid.tokens"):
        get_workload("transformer-xl", "paper").task(batch_size=2, data=tmp_path)
