"""Calls of compiled programs on the models of a session."""

from functools import partial
from typing import Any

import jax

from ..parallel import place
from ..text.session import Session
from .parameter_arrays import LeavesOf, modules_of


class CompiledCalls:
    """Compiles each function of the device at its first use, and calls it.

    Attributes:
      session: keeps the programs and the models.
      compile_seconds: the seconds of all compilations so far.
    """

    def __init__(self, session: Session):
        self.session = session
        self.compile_seconds = 0.0
        self._leaves_of = LeavesOf()

    @property
    def _models(self) -> tuple[Any, Any]:
        return self.session.target.model, self.session.parameters

    @property
    def _modules(self) -> tuple[Any, Any]:
        """The models with their arrays taken out, see ``engine.parameter_arrays``."""
        return self._leaves_of(self._models)

    def forget_weights(self) -> None:
        """Takes the weights from the session's models anew."""
        self._leaves_of.forget()

    def _call(self, function: partial, args: tuple, modules: tuple = (), key: tuple = (), **options) -> Any:
        """``function(*modules, *args)``. ``key`` tells apart the programs of one function."""
        args = self._on_devices(args)
        compiled, seconds = self._compile(function, args, modules, key, options)
        self.compile_seconds += seconds
        with jax.disable_jit(False):
            return jax.block_until_ready(compiled(*modules, *args))

    def _compile(self, function: partial, args: tuple, modules: tuple, key: tuple, options: dict) -> tuple:
        """The program of a call, and its compilation's seconds.

        On a mesh a program is compiled for the shardings of its arguments.
        """
        mesh = self.session.mesh
        layout = () if mesh is None else tuple(x.sharding for x in jax.tree.leaves(args))
        name = "engine", function.func.__name__, *key, *layout

        def on_modules(*arguments):
            return function(*map(modules_of, arguments[: len(modules)]), *arguments[len(modules) :])

        with jax.disable_jit(False):
            return self.session.compile(name, on_modules, modules, args, mesh, lambda: options)

    def _on_devices(self, args):
        """Arguments, of which numbers of the host are whole on all devices of the mesh."""
        mesh = self.session.mesh
        if mesh is None:
            return args
        return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else place(x, mesh, rows=False), args)
