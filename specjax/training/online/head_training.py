"""The training of a head whose weights are in use meanwhile."""

import jax
import jax.numpy as jnp
from flax import nnx

from ...heads import Eagle3Head
from ..loop import make_step, place_parameters
from ..recipe import Recipe
from ..run import cast, make_loss


class HeadTraining:
    """Float32 weights of a head, and the state of their optimizer.

    Args:
      module: the head from which the training begins.
      recipe: its keys ``loss``, ``optimizer`` and ``steps`` count.
    """

    def __init__(self, module: Eagle3Head, recipe: Recipe):
        self._optimizer = recipe.optimizer.make(recipe.steps)
        self._graph, _, self._rest = nnx.split(cast(module, "float32"), nnx.Param, ...)
        self._update = make_step(self._graph, make_loss(recipe), self._optimizer)
        self._dtypes = jax.tree.map(lambda x: x.dtype, module)
        self.begin(module)

    def begin(self, module: Eagle3Head) -> None:
        """Continues from another head of these shapes, with a new state of the optimizer."""
        _, params, _ = nnx.split(cast(module, "float32"), nnx.Param, ...)
        self._params = place_parameters(params, None)
        self._state = jax.jit(self._optimizer.init)(self._params)

    def step(self, batch: tuple, target: nnx.Module) -> float:
        """The loss of a batch, from which the weights then have learnt."""
        self._params, self._state, loss, _ = self._update(self._params, self._state, self._rest, batch, (target,))
        return float(loss)

    @property
    def head(self) -> Eagle3Head:
        """The head with the present weights, in the dtypes of the first one."""
        head = nnx.merge(self._graph, self._params, self._rest)
        return jax.tree.map(lambda x, dtype: jnp.array(x, dtype), head, self._dtypes)
