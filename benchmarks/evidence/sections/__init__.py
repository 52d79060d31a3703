"""The sections of docs/results.md, by field, in their order on the page."""

from evidence.sections.choices import formats, momentum, sensitivity
from evidence.sections.images import batch_sizes, convolutions, vision
from evidence.sections.language import language, memories, mixtures, words
from evidence.sections.others import graphs, reinforcement

SECTIONS = (
    vision,
    batch_sizes,
    convolutions,
    language,
    words,
    memories,
    mixtures,
    graphs,
    reinforcement,
    formats,
    sensitivity,
    momentum,
)
