"""Which differences of the results page are claims."""

from dataclasses import replace

import pytest
import results_page as results
from stored import SeedGroup
from support.pages import flat

PAGE = flat("docs/results.md")


def test_which_differences_are_confirmed(rows, studies):
    found = [(label, row.lead.word) for label, row in rows.items() if row.is_confirmed]
    gpts = ("GPT, 25.7 M", "GPT, 10.9 M", "GPT, 0.9 M", "mixture of experts")
    assert found == [*((label, "better") for label in gpts), ("LSTM, 8 epochs", "worse")]
    said = "confirm](#at-the-same-number-of-steps) five: **better** on GPTs of three sizes and a mixture of experts"
    assert f"{said}, **worse** on an LSTM." in PAGE
    assert {label: (rows[label].agreeing, len(rows[label].also)) for label in ("ConvNeXt", "Deformable DETR")} == {
        "ConvNeXt": (2, 2),
        "Deformable DETR": (1, 1),
    }
    halves = results.contests(studies, "halves")
    assert [row.label for row in halves if row.is_confirmed] == ["GPT, 10.9 M, 1,000 of 2,000 steps"]


@pytest.mark.parametrize(
    ("seeds", "gaps", "agreeing", "confirmed"),
    [
        (5, [-0.2], 2, True),
        (4, [-0.2], 2, False),
        (5, [], 1, False),
        (5, [-0.2, 0.2], 2, False),
        (5, [0.0], 1, False),
    ],
)
def test_what_confirms_a_difference(rows, seeds, gaps, agreeing, confirmed):
    """Five seeds, and at least one other search, all of which find the same."""
    row = rows["GPT, 10.9 M"]

    def groups(gap, n):
        made = [
            replace(run, result={**run.result, "final": {"loss": end + 0.001 * run.config.seed}})
            for end in (1 + gap, 1)
            for run in row.adan.runs[:n]
        ]
        theirs = [replace(run, config=replace(run.config, optimizer="adamw")) for run in made[n:]]
        return SeedGroup(tuple(made[:n])), SeedGroup(tuple(theirs))

    ours, theirs = groups(-0.1, seeds)
    found = results.Contest("", ours, [theirs], also=[groups(gap, 3) for gap in gaps])
    assert (found.lead.word, found.agreeing, found.is_confirmed) == ("better", agreeing, confirmed)
