"""Energy counters, in a directory like Linux's."""

from specjax.tools.evaluate.benchmark.runner import joules_since, read_joules


def test_the_packages_of_a_processor_are_summed(tmp_path):
    assert read_joules(tmp_path) is None
    for name, microjoules in {"intel-rapl:0": 2_000_000, "intel-rapl:1": 500_000, "intel-rapl:0:0": 7}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{microjoules}\n")
    assert read_joules(tmp_path) == 2.5
    assert joules_since(1.0, tmp_path) == 1.5
    assert joules_since(3.0, tmp_path) is None  # a counter began at 0 again
    assert joules_since(None, tmp_path) is None
    (tmp_path / "intel-rapl:0" / "energy_uj").unlink()
    assert read_joules(tmp_path) is None
