"""A local cluster of Ray."""

import tempfile

import pytest


@pytest.fixture(scope="module")
def ray():
    """Ray on a cluster of one machine and two processors, without its output."""
    import ray

    quiet = dict(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    # The path of the folder is short, because Ray makes sockets in it.
    with tempfile.TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # workers as quick as the processes of other tests
        ray.init(num_cpus=2, object_store_memory=100 * 2**20, _temp_dir=folder, **quiet)
        ray.data.DataContext.get_current().enable_progress_bars = False
        ray.data.DataContext.get_current().execution_options.preserve_order = True
        yield ray
        ray.shutdown()
