"""One reader of people's files: opened once, read once, bounded before anything is laid out."""

from __future__ import annotations

import ast
import gzip
import os
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.facts import user_files
from ridgeline.facts.user_files import LOADS, SCENARIO, TRACE, TRUTH, FileKind, as_user_file, read_user_file

SMALL = replace(TRUTH, most_bytes=5000, most_lines=100, most_line_bytes=200)


def refused(raw: bytes, kind: FileKind = SMALL) -> str:
    with pytest.raises(InputError) as caught:
        as_user_file(raw, kind, "t.tsv")
    return str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytes_lines_and_the_length_of_a_line_are_bounded(pack: type[bytes]) -> None:
    told = "the limit of a truth table; split the table"
    assert refused(pack(b"\n" * 101)) == f"t.tsv: holds more than 100 lines, {told}"
    assert refused(pack((b"x" * 99 + b"\n") * 51)) == f"t.tsv: holds more than 5,000 bytes, {told}"
    assert refused(pack(b"a\nb\n" + b"x" * 201)) == f"t.tsv:3: this line has more than 200 bytes, {told}"
    assert as_user_file(pack((b"x" * 99 + b"\n") * 50), SMALL, "t.tsv").line_ends == 50


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.tsv.gz"
    with gzip.open(path, "wb") as out:
        for _ in range(64):
            out.write(b"1\t2\n" * 2**18)
    assert path.stat().st_size < 200_000
    tracemalloc.start()
    with pytest.raises(InputError, match="holds more than 200,000 lines"):
        read_user_file(path, TRUTH)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4e6


@pytest.mark.parametrize("kind", [SCENARIO, LOADS, TRUTH, TRACE], ids=lambda kind: kind.what)
def test_devices_and_folders_are_refused(kind: FileKind, tmp_path: Path) -> None:
    link = tmp_path / "config.json"
    link.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=r"is a device; .* regular file") as caught:
        read_user_file(link, kind, field="here")
    assert (caught.value.file, caught.value.field) == (str(link), "here")
    with pytest.raises(InputError, match="is a folder"):
        read_user_file(tmp_path, kind)
    with pytest.raises(InputError, match="no such file"):
        read_user_file(tmp_path / "none", kind)
    with pytest.raises(InputError, match="cannot be read"):
        read_user_file(tmp_path / "nul\0", kind)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        read_user_file(tmp_path / ("x" * 300), kind)


def test_a_pipe_is_read_once_and_cannot_be_read_again(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a pipe; a scenario is a regular file"):
        read_user_file(pipe, SCENARIO)
    writer = threading.Thread(target=pipe.write_text, args=("a\tb\n1\t2\n",))
    writer.start()
    found = read_user_file(pipe, TRUTH)
    writer.join()
    assert (list(found.lines()), found.again) == (["a\tb", "1\t2"], False)


@given(
    text=st.text(st.characters(codec="utf-8", exclude_characters="\ufeff\x00"), max_size=60),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    packed=st.booleans(),
)
def test_lines_are_those_of_the_text(text: str, encoding: str, packed: bool) -> None:
    raw = text.encode(encoding)
    found = list(as_user_file(gzip.compress(raw) if packed else raw, TRACE, "t").lines())
    whole = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert found == (whole[:-1] if whole[-1] == "" else whole)


@given(st.binary(max_size=400), st.integers(1, 50))
def test_a_cut_gzip_file_gives_the_lines_before_the_cut(noise: bytes, cut: int) -> None:
    whole = b"".join(b"%d,%d\n" % (i, i * 7919 % 4093) for i in range(2000))
    packed = gzip.compress(whole)
    place = len(packed) * cut // 51
    found = as_user_file(packed[:place] if place > 2 else packed[:9], TRACE, "t")
    lines = list(found.lines())
    assert found.break_
    assert whole.startswith("\n".join(lines).encode())
    if noise:
        broken = as_user_file(packed + noise, TRACE, "t")
        assert list(broken.lines())[:2000] == whole.decode().splitlines()


def test_no_other_module_opens_what_people_give() -> None:
    """Files that a module opens itself are the package's own: shipped data, answers that it keeps, its own children."""
    own = {
        "facts/store.py", "facts/user_files.py", "facts/profiles.py", "api/checking.py", "api/planning.py",
        "api/beginning.py", "api/sweep_file.py", "api/sweeping.py", "cli/main.py", "cli/screen.py", "pages/page.py",
        "web/app.py", "web/worker.py",
        "run/append.py", "judge/kernels.py", "judge/child.py", "run/launch.py", "judge/work_folder.py", "run/rank.py",
        "calibrate/refit.py", "calibrate/here/devices.py", "calibrate/here/host.py", "calibrate/here/run.py",
        "seams/registry.py", "serving/compiling.py",
    }  # fmt: skip
    root = Path(user_files.__file__).parents[1]
    for path in sorted(root.rglob("*.py")):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        calls = [node.func for node in nodes if isinstance(node, ast.Call)]
        names = {
            one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "")
            for one in calls
            if not (isinstance(one, ast.Attribute) and getattr(one.value, "id", "") in ("store", "self"))
        }
        if names & {"open", "read_text", "read_bytes", "fromfile", "loadtxt"}:
            assert str(path.relative_to(root)) in own, f"{path}: read it with facts.user_files.read_user_file"
