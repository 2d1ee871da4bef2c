"""The work of a method's round: the operations of its products, and the bytes that they read."""

from functools import partial

import jax
import jax.numpy as jnp

from ....core.settings import own_settings
from ....loop import decode
from ....loop.chooser import at_largest_shape
from ....parallel import use_mesh
from ....text.generator import Generator
from ..products import Work, of_round


def work_of_round(generator: Generator, prompt: list[int]) -> Work:
    """The least work of a round at batch 1, as if one device did all of it, with full caches.

    It follows from the traced program, see ``tools.evaluate.products``. The caches have the
    generator's capacity. Of a method that chooses a shape for each round it is a round with the
    largest drafts.

    Args:
      prompt: token ids of a prompt, for the state of a batch.
    """
    session = generator.session
    state = generator.start([prompt], max_new_tokens=1).state
    run = partial(decode.run, drafter=at_largest_shape(session.drafter), rule=session.rule)
    on_device = jax.tree.map(jnp.asarray, session.parameters)  # the times of method auto lie on the host
    weights = (generator.target.model, on_device)
    until = jnp.int32(1)
    with use_mesh(session.mesh), own_settings():
        return of_round(jax.jit(run).trace(*weights, state, until), weights, (state, until), 1)
