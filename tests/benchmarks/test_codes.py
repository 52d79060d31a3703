"""The script that measures codes of states along a run of `adan-bench`."""

import codes


def test_exact_codes_make_no_error_and_more_bits_a_smaller_one():
    candidates = {
        "exact": codes.Codes(),
        "8 bits": codes.eight_bits()["all: floored, 5 bits; √n, floored, 6 bits, 32"],
        "4 bits": codes.four_bits()["all: m, a, g, n in 4 bits (2.125)"],
    }
    errors, largest = codes.measure(candidates, "digits-vit", 3e-3, (0.9, 0.92, 0.99), steps=4)
    assert errors["exact"] == 0
    assert 0 < errors["8 bits"] < 0.1 < errors["4 bits"]
    assert 0.9 < largest["fp32"] < 1.1  # the first update of every element is lr
