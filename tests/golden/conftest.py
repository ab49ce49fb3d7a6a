import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that rewrite the expected files and that compare bytes."""
    parser.addoption("--rewrite", action="store_true", help="write the findings as they are now")
    parser.addoption("--exact", action="store_true", help="compare findings byte for byte")
