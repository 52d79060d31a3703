"""Stored studies, read once."""

import pytest
import results_page as results
import stored


@pytest.fixture(scope="session")
def studies():
    return stored.studies()


@pytest.fixture(scope="session")
def rows(studies):
    return {row.label: row for row in results.contests(studies)}
