"""``specjax evaluate``: asks the questions of suites, scores the answers, measures the speed-up."""
