"""Text on policy is written by the newest model."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.float64_training import STREAM
from support.models import tiny_model

from specjax.training.data import Mixture, Stream
from specjax.training.recipe import make_recipe
from specjax.training.run import Batches


class Parrot:
    """Replaces the Generator: repeats the last token of each prompt, and records the model of each call."""

    used = []

    def __init__(self, target, method):
        self.target = target

    def update(self, model):
        self.target = SimpleNamespace(model=model)

    def __call__(self, prompts, max_new_tokens, temperature, **options):
        assert temperature == 0.5
        self.used.append(self.target.model)
        return [SimpleNamespace(prompt_token_ids=p, token_ids=[p[-1]] * max_new_tokens) for p in prompts]


@pytest.mark.parametrize("writer", ["target", "draft"])
def test_text_on_policy_is_written_by_the_newest_model(small, writer, monkeypatch):
    monkeypatch.setattr("specjax.training.run.Generator", Parrot)
    monkeypatch.setattr(Parrot, "used", [])
    recipe = make_recipe(
        dict(kind="draft", on_policy=writer, batch=2, length=12, every=4, steps=8, temperature=0.5), "test"
    )
    learnt = np.arange(STREAM.size) % 2 == 0
    mixture = Mixture.join([Stream(STREAM.astype(np.int32), learnt)])
    text = Batches(recipe, mixture, small, tiny_model(1))
    for step, module in ((0, tiny_model(2)), (4, tiny_model(3))):
        text.renew(step, module)
        assert Parrot.used[-1] is (small.model if writer == "target" else module)
        windows, counted, _ = text.read(step)
        assert windows.shape == (2, 13)
        assert (windows[:, 3:] == windows[:, 2:3]).all()  # Three tokens are of the data, the rest is written.
        assert counted.shape == (2, 14) and counted[:, 3:].all() and not counted[:, :3].all()
    text.renew(8, None)
    assert len(Parrot.used) == 2  # Nothing is written after the last step.
