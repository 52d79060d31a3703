"""The five codes of quantized states."""

import pytest

from adan.lowbit import ROOT, ROOT6, SIGNED, SIGNED4, SIGNED6

CODES = {"signed": SIGNED, "root": ROOT, "signed, 6 bit": SIGNED6, "root, 6 bit": ROOT6, "signed, 4 bit": SIGNED4}
every_code = pytest.mark.parametrize("code", CODES.values(), ids=CODES)
