"""One look per optimizer, the same on the page and in the figures: Okabe and Ito's colors, then dashes.

The eight colors can be told apart by color-blind readers; from the ninth optimizer on, dashes tell the rest apart.
"""

from __future__ import annotations

from collections.abc import Sequence

# (on white, on black): black turns white, and the yellow is darkened on white, where #F0E442 has a contrast of 1.3.
COLORS = (
    ("#D55E00", "#E8752A"),
    ("#0072B2", "#3E9BD6"),
    ("#56B4E9", "#8FD0F5"),
    ("#009E73", "#26BF94"),
    ("#CC79A7", "#DB97BC"),
    ("#000000", "#FFFFFF"),
    ("#E69F00", "#F0B429"),
    ("#A89F00", "#F0E442"),
)
DASHES = ("", "6 3", "2 3", "8 3 2 3")
FIXED = ("adan", "adamw", "adam", "sgd-momentum", "lamb")  # the same color in every report


def style_of(name: str, names: Sequence[str]) -> dict[str, str]:
    """Colors and dashes of one of the names of a report."""
    order = [n for n in FIXED if n in names] if len(names) > len(COLORS) else list(FIXED)
    order += [n for n in names if n not in order]
    index = order.index(name)
    light, dark = COLORS[index % len(COLORS)]
    return {"light": light, "dark": dark, "dash": DASHES[index // len(COLORS) % len(DASHES)]}
