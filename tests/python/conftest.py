"""What every test has: two threads, a seed, a folder for NVMe."""
import pathlib

import pytest
import torch

import transload


def pytest_report_header(config):
    return f"transload from {pathlib.Path(transload.__file__).parent}, torch {torch.__version__}"


@pytest.fixture(autouse=True)
def same_start():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def nvme(tmp_path):
    folder = tmp_path / "nvme"
    folder.mkdir()
    return folder
