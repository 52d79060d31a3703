"""GLUE's files in their own layouts, its scores, and BERT handed from pre-training to fine-tuning."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.learning import resize, settings

from adan_bench.errors import UsageError
from adan_bench.records.store import RunStore
from adan_bench.training.trainer import Trainer, run
from adan_bench.workloads.language import KINDS, SMOKE, TextSizes
from adan_bench.workloads.parts.bert import accuracy, matthews, pearson, read

NAMED = {kind.name: kind for kind in KINDS}
TREES = "( parse )\t( parse )\t(ROOT parse)\t(ROOT parse)"
MNLI = (
    "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\t"
    "sentence1\tsentence2\tlabel1"
)
#: The first lines of each file as GLUE's own download has them, and what they mean.
FILES = {
    "cola": ("gj04\t1\t\tA good one.\ngj04\t0\t*\tOne bad a.\n", [("A good one.", "", 1.0), ("One bad a.", "", 0.0)]),
    "sst2": ("sentence\tlabel\nfunny \t1\n", [("funny ", "", 1.0)]),
    "mnli": (
        f"{MNLI}\tgold_label\n0\t1\t1n\tfiction\t{TREES}\tIt rains.\tIt is wet.\tneutral\tneutral\n",
        [("It rains.", "It is wet.", 1.0)],
    ),
    "qnli": ("index\tquestion\tsentence\tlabel\n0\tWho?\tHe did.\tentailment\n", [("Who?", "He did.", 1.0)]),
    "qqp": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tHow?\tIn what way?\t1\n",
        [("How?", "In what way?", 1.0)],
    ),
    "rte": (
        'index\tsentence1\tsentence2\tlabel\n0\tHe said "no.\tHe spoke.\tnot_entailment\r\n',
        [('He said "no.', "He spoke.", 0.0)],
    ),
    "mrpc": (
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tIt fell.\tIt dropped.\n",
        [("It fell.", "It dropped.", 1.0)],
    ),
    "stsb": (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore\n"
        "0\tmain\tf\t2012\t1\tnone\tnone\tA plane.\tAn air plane.\t4.750\n",
        [("A plane.", "An air plane.", 4.75)],
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_real_layouts(name: str, tmp_path: Path) -> None:
    text, meaning = FILES[name]
    (tmp_path / "train.tsv").write_text(text, encoding="utf-8")
    assert read(tmp_path / "train.tsv", NAMED[name]) == meaning


def test_sst2_without_a_header(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("one long string of cliches\t0\n", encoding="utf-8")
    assert read(tmp_path / "dev.tsv", NAMED["sst2"]) == [("one long string of cliches", "", 0.0)]


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    with pytest.raises(UsageError, match=r"train.tsv: cannot be read as text.*get GLUE's RTE again"):
        read(file, NAMED["rte"])
    file.write_text("index\tsentence1\tlabel\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"its header lacks sentence1 or sentence2 or label; it is: index"):
        read(file, NAMED["rte"])
    file.write_text("gj04\tyes\t\tA sentence.\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"1 of 1 lines have no answer of 0, 1 in column 2"):
        read(file, NAMED["cola"])
    lines = ["1\t2\t3\tHow?\tWhy?\t0"] * 200 + ["1\t2\t3\tbroken"]  # as a few lines of the real file are
    file.write_text("\n".join(["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", *lines]), encoding="utf-8")
    assert len(read(file, NAMED["qqp"])) == 200


def test_scores_are_those_of_scikit_learn() -> None:
    from scipy.stats import pearsonr
    from sklearn.metrics import matthews_corrcoef

    source = torch.Generator().manual_seed(0)
    logits, answers = torch.randn(200, 2, generator=source), torch.randint(2, (200,), generator=source)
    logits[:, 1] += answers
    assert matthews(logits, answers) == pytest.approx(matthews_corrcoef(answers, logits.argmax(1)))
    assert matthews(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])) == 0.0
    assert accuracy(logits, answers) == pytest.approx((logits.argmax(1) == answers).double().mean().item())
    assert pearson(logits[:, 1:], answers.float()) == pytest.approx(pearsonr(logits[:, 1], answers)[0], abs=1e-5)
    assert pearson(torch.zeros(4, 1), torch.arange(4.0)) == 0.0


def test_pretraining_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(settings("bert-pretrain", steps=2, keep_weights=True), RunStore(tmp_path / "first"))
    weights = torch.load(tmp_path / "first" / "weights.pt", weights_only=True)
    trainer = Trainer(settings("glue-cola", init=tmp_path / "first"))
    key = "bert.encoder.layer.0.output.dense.weight"
    assert torch.equal(trainer.model.state_dict()[key], weights[key])
    assert "starts at random" not in trainer.task.note
    fresh = Trainer(settings("glue-cola"))
    assert not torch.equal(fresh.model.state_dict()[key], weights[key])
    assert "starts at random, not from a pre-trained BERT: give --init" in fresh.task.note
    resize(monkeypatch, "glue-cola", replace(SMOKE, vocabulary=900), "smoke")
    with pytest.raises(UsageError, match=r"its text has another tokenizer than this run's tokenizer of 900"):
        Trainer(settings("glue-cola", init=tmp_path / "first"))
    resize(monkeypatch, "glue-cola", replace(SMOKE, layers=3), "smoke")
    with pytest.raises(UsageError, match=r"no BERT of this size \(.*encoder.layer.2.*\); name a run of bert-pretrain"):
        Trainer(settings("glue-cola", init=tmp_path / "first"))


def test_paper_scale_reads_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MNLI has two development splits, and long sentences are cut to what fits."""
    resize(monkeypatch, "glue-mnli", TextSizes(1, 16, 2, 24, 300))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("It rains and it is wet. " * 200, encoding="utf-8")
    folder = tmp_path / "glue" / "MNLI"
    folder.mkdir(parents=True)
    line = "\t".join(["0", "1", "1n", "fiction", *TREES.split("\t"), "It rains. " * 20, "It is wet.", "neutral"])
    train = [f"{line}\t{label}" for label in ("neutral", "entailment", "contradiction", "neutral")]
    (folder / "train.tsv").write_text("\n".join([f"{MNLI}\tgold_label", *train]), encoding="utf-8")
    more = "\t".join(f"label{i}" for i in range(2, 6))
    dev = "\n".join([f"{MNLI}\t{more}\tgold_label", f"{line}\tneutral\tneutral\tneutral\tentailment\tneutral", ""])
    for split in ("matched", "mismatched"):
        (folder / f"dev_{split}.tsv").write_text(dev, encoding="utf-8")
    trainer = Trainer(settings("glue-mnli", scale="paper", data=tmp_path, batch_size=2, steps=2))
    tokens, answers = trainer.task.batches(0)
    assert tokens.shape == (2, 24)
    assert answers.dtype == torch.int64
    trainer.update()
    assert set(trainer.evaluate()) == {"accuracy", "accuracy_mismatched", "loss"}
    (folder / "dev_matched.tsv").unlink()
    with pytest.raises(UsageError, match=r"glue-mnli needs glue/MNLI/dev_matched.tsv"):
        settings("glue-mnli", scale="paper", data=tmp_path)
