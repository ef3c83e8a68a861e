"""A file that is written again and again is whole for whoever reads it, whoever else writes it at the same moment."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.allocator.under_torch import private_files
from helpers.look.files import write_atomic


def test_threads_that_write_one_file_at_once_leave_one_whole_text_and_nothing_beside_it(tmp_path):
    path = tmp_path / "run.json"
    texts = [name * 20_000 for name in "abcdefgh"]

    def write(text):
        for _ in range(20):
            write_atomic(path, text)
            assert path.read_text() in texts

    with ThreadPoolExecutor(len(texts)) as pool:
        list(pool.map(write, texts))
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path):
    path = tmp_path / "run.json"
    write_atomic(path, "old")
    with pytest.raises(TypeError):
        write_atomic(path, 3)
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["run.json"]
    # The name in an error is the one that was given.
    with pytest.raises(OSError) as refused:
        write_atomic(tmp_path / "none" / "run.json", "new")
    assert refused.value.filename == str(tmp_path / "none" / "run.json")


def test_a_file_is_there_once_it_is_whole(tmp_path):
    path = tmp_path / "kept.json"
    path.write_text("before")
    with pytest.raises(KeyError), private_files.replacing(str(path)) as file:
        file.write("half")
        raise KeyError
    assert path.read_text() == "before"
    with private_files.replacing(str(path), "wb") as file:
        file.write(b"after")
    assert path.read_bytes() == b"after" and not (tmp_path / "kept.json.part").exists()
