"""Applications on one device: hand-worked runs, a queue of kernels one by one, files that are none."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ridgeline.cli.main import app
from ridgeline.errors import InputError
from ridgeline.facts.shared_devices import is_shared_device, shared_device
from ridgeline.metrics.metric import metric
from ridgeline.metrics.results import read_results
from ridgeline.seams.device_turns import DeviceTurns
from ridgeline.seams.registry import names, technique
from ridgeline.serving.shared_device import Application, RequestPart, run_shared


def rule(key: str) -> DeviceTurns:
    found = technique("device_turns", key)
    assert isinstance(found, DeviceTurns)
    return found


def one(name: str, *parts: RequestPart, requests: int = 1, **said: object) -> Application:
    return Application(name=name, requests=requests, parts=parts, **said)


LONG = one("long", RequestPart(seconds=9.0, kernels=3), objective_s=20.0)  # kernels of 3 s
SHORT = one("short", RequestPart(seconds=2.0, kernels=2, objective_s=3.0))  # kernels of 1 s


@pytest.mark.parametrize(
    ("key", "ends", "kept"),
    [
        ("greedy-turns", (11.0, 8.0), (1, 0)),  # the short one has 1/4 of the time: 2 s take 8
        ("equal-partitions", (18.0, 4.0), (1, 0)),
        ("deadline-turns", (11.0, 2.0), (1, 1)),
    ],
)
def test_two_applications_by_hand(key, ends, kept):
    found = run_shared([LONG, SHORT], rule(key), 0.5)
    assert [each.end_s for each in found] == pytest.approx(ends)
    assert [each.attained_share for each in found] == list(kept)
    assert found[1].slowdown == pytest.approx(ends[1] / 2.0)
    assert found[1].normalized == pytest.approx(ends[1] / 3.0)


def test_parts_that_wait_for_memory_share_its_rate():
    both = [one(name, RequestPart(seconds=4.0, memory=True)) for name in ("a", "b")]
    # a half of the multiprocessors keeps memory busy: each would run at full speed, together they ask for twice
    assert [each.end_s for each in run_shared(both, rule("equal-partitions"), 0.5)] == pytest.approx([8.0, 8.0])
    third = [*both, one("c", RequestPart(seconds=3.0))]
    found = run_shared(third, rule("equal-partitions"), 0.5)  # 2/3 each, of 4/3 asked: a half each
    assert [each.end_s for each in found] == pytest.approx([8.0, 8.0, 9.0])


def test_arrivals_and_applications_that_come_after_others():
    first = one("first", RequestPart(seconds=1.0), requests=3, every_s=2.0, objective_s=1.0)
    after = one("after", RequestPart(seconds=2.0), after=(0,))
    found = run_shared([first, after], rule("greedy-turns"), 0.5)
    assert [each.end_s for each in found] == pytest.approx([5.0, 7.0])
    assert (found[0].latency_s, found[0].attained_share, found[1].normalized) == (pytest.approx(1.0), 1.0, None)
    late = run_shared([one("late", RequestPart(seconds=3.0), requests=3, every_s=2.0)], rule("greedy-turns"), 0.5)
    assert late[0].longest_s == pytest.approx(5.0)  # ends at 9, came at 4
    assert late[0].slowdown == pytest.approx(1.0)


def one_by_one(given: list[tuple[float, int]]) -> list[float]:
    """Ends of chains of equal kernels in a queue, each launched as the one before it ends."""
    left, ends, now = [many for _, many in given], [0.0] * len(given), 0.0
    queue = list(range(len(given)))
    while queue:
        place = queue.pop(0)
        now += given[place][0]
        left[place] -= 1
        ends[place] = now
        if left[place]:
            queue.append(place)
    return ends


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-3, 1.0), st.integers(50, 200)), min_size=2, max_size=4))
def test_kernels_in_turn_are_a_queue_of_kernels(chains):
    found = run_shared(
        [one(str(place), RequestPart(seconds=s * n, kernels=n)) for place, (s, n) in enumerate(chains)],
        rule("greedy-turns"), 0.5,
    )  # fmt: skip
    round_s = sum(s for s, _ in chains)
    for ours, theirs in zip(found, one_by_one(chains), strict=True):
        assert ours.end_s == pytest.approx(theirs, abs=2 * round_s)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 5.0), st.floats(0.1, 20.0)), min_size=2, max_size=5))
def test_work_is_conserved_and_deadlines_keep_what_any_rule_keeps(chains):
    many = [one(str(place), RequestPart(seconds=s), objective_s=by) for place, (s, by) in enumerate(chains)]
    kept = {}
    for key in names("device_turns"):
        found = run_shared(many, rule(key), 0.5)
        kept[key] = all(each.attained_share == 1.0 for each in found)
        if key != "equal-partitions":
            assert max(each.end_s for each in found) == pytest.approx(sum(s for s, _ in chains))
    assert kept["deadline-turns"] or not any(kept.values())


def test_a_file_and_what_is_wrong_with_one(tmp_path):
    path = tmp_path / "apps.toml"
    path.write_text(
        '[[application]]\nname = "a"\nrequests = 2\nobjective = "1 s"\n'
        '[[application.part]]\nseconds = "0.4 s"\n[[application.part]]\n'
        'command = "op stream 1GB --on A100-SXM-80GB"\nvalue = "rows.0.seconds"\nmemory = true\n'
    )
    assert is_shared_device(str(path))
    answer = CliRunner().invoke(app, ["simulate", str(path), "--json"])
    told = json.loads(answer.stdout)
    assert answer.exit_code == 0
    assert [each["least_attained_share"] for each in told["rules"]] == [1.0, 1.0, 1.0]
    assert 0.4 < told["rows"][0]["latency_s"] < 0.41
    for wrong, said in (
        (path.read_text().replace('"0.4 s"', '"0 m/s"'), "seconds"),
        (path.read_text().replace('seconds = "0.4 s"', ""), "needs seconds, or a command"),
        (path.read_text().replace("requests = 2", 'requests = 2\nafter = ["b"]'), "does not stand above"),
        (path.read_text() + path.read_text(), "stands twice"),
        (path.read_text().replace("op stream", "measure stream"), "neither predict nor op"),
        (path.read_text().replace("A100-SXM-80GB", "A1000000"), "has no answer at rows.0.seconds"),
    ):
        path_of = tmp_path / "wrong.toml"
        path_of.write_text(wrong)
        answer = CliRunner().invoke(app, ["simulate", str(path_of)])
        assert isinstance(answer.exception, InputError)
        assert said in str(answer.exception)
    answer = CliRunner().invoke(app, ["simulate", str(path), "--rate", "3"])
    assert isinstance(answer.exception, InputError)
    assert answer.exception.field == "--rate"


def test_applications_that_ship_say_where_their_times_come_from():
    shipped = shared_device("consumer-apps")
    assert [each.name for each in shipped.application] == ["images", "chatbot", "captions"]
    assert sum(part.times for part in shipped.application[2].part) == 4 * 32 + 40 * 33
    with pytest.raises(InputError):
        shared_device("no-such-file.toml")


def test_attainment_of_a_table(tmp_path):
    path = tmp_path / "task_chat1_u0_perf.csv"
    path.write_text("request_num,ttft,tpot,itl\n1,0.5,0.2,0.1\n2,1.5,0.2,0.1\n3,0.5,0.3,0.1\n4,,,\n")
    table = read_results(str(path))
    values = metric("slo-attainment(ttft=1,tpot=0.25)").score(table).values
    assert values["attained_share"] == 0.25  # the last did not end
    assert values["normalized_ttft"] == pytest.approx(2.5 / 3)
    assert values["normalized_tpot"] == pytest.approx(0.7 / 3 / 0.25)
    with pytest.raises(InputError, match="needs an objective"):
        metric("slo-attainment").score(table)
