"""The sections of docs/results.md, by field, in their order on the page."""

from evidence.sections.choices import formats, momentum, sensitivity
from evidence.sections.images import batch_sizes, convolutions, vision
from evidence.sections.language import language, memories, mixtures, words
from evidence.sections.others import detection, graphs, reinforcement
from evidence.sections.pretraining import bert, masked_images

SECTIONS = (
    vision,
    batch_sizes,
    convolutions,
    masked_images,
    language,
    words,
    memories,
    mixtures,
    bert,
    detection,
    graphs,
    reinforcement,
    formats,
    sensitivity,
    momentum,
)
