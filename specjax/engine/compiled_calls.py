"""Calls of compiled programs on the models of a session."""

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
from flax import nnx, struct

from ..parallel import place
from ..text.session import Session


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
        """The models with their arrays taken out, see ``LeavesOf``."""
        return self._leaves_of(self._models)

    def forget_weights(self) -> None:
        """Takes the weights from the session's models anew."""
        self._leaves_of.forget()

    def _call(
        self, function: partial, args: tuple, modules: tuple = (), key: tuple = (), waits: bool = True, **options
    ) -> Any:
        """``function(*modules, *args)``. ``key`` tells apart the programs of one function.

        ``waits``: whether the call waits for the device.
        """
        args = self._on_devices(args)
        compiled, seconds = self._compile(function, args, modules, key, options)
        self.compile_seconds += seconds
        with jax.disable_jit(False):
            result = compiled(*modules, *args)
            return jax.block_until_ready(result) if waits else result

    def _compile(self, function: partial, args: tuple, modules: tuple, key: tuple, options: dict) -> tuple:
        """The program of a call, and its compilation's seconds.

        On a mesh a program is compiled for the shardings of its arguments.
        """
        mesh = self.session.mesh
        layout = () if mesh is None else tuple(x.sharding for x in jax.tree.leaves(args))
        name = "engine", function.func.__name__, *key, *layout

        def on_modules(*arguments):
            return function(*map(_modules_of, arguments[: len(modules)]), *arguments[len(modules) :])

        with jax.disable_jit(False):
            return self.session.compile(name, on_modules, modules, args, mesh, lambda: options)

    def _on_devices(self, args):
        """Arguments, of which numbers of the host are whole on all devices of the mesh."""
        mesh = self.session.mesh
        if mesh is None:
            return args
        return jax.tree.map(lambda x: x if isinstance(x, jax.Array) else place(x, mesh, rows=False), args)


class _Structure:
    """The structure of a module, compared by identity first, because other comparisons are slow."""

    def __init__(self, treedef):
        self.treedef = treedef

    def __eq__(self, other) -> bool:
        return self is other or (isinstance(other, _Structure) and self.treedef == other.treedef)

    def __hash__(self) -> int:
        return hash(self.treedef)


class Leaves(struct.PyTreeNode):
    """The arrays of a module, and its structure."""

    arrays: tuple
    structure: _Structure = struct.field(pytree_node=False)


class LeavesOf:
    """Replaces the modules in pytrees by their ``Leaves``.

    To take the arrays out of a module costs 8 microseconds an array, so it is done once.

    The arrays are those that a module has when it is first seen, until ``forget`` is called.
    """

    def __init__(self):
        self._known: WeakKeyDictionary[nnx.Module, Leaves] = WeakKeyDictionary()
        self._structures: dict[Any, _Structure] = {}

    def __call__(self, tree):
        return jax.tree.map(self._take, tree, is_leaf=_is_module)

    def forget(self) -> None:
        """Takes the arrays of every module anew when it is next seen."""
        self._known.clear()

    def _take(self, leaf):
        if not _is_module(leaf):
            return leaf
        if leaf not in self._known:
            arrays, treedef = jax.tree.flatten(leaf)
            self._known[leaf] = Leaves(tuple(arrays), self._structures.setdefault(treedef, _Structure(treedef)))
        return self._known[leaf]


def _modules_of(tree):
    """The pytree with its modules in place of their ``Leaves``."""
    build = lambda leaf: jax.tree.unflatten(leaf.structure.treedef, leaf.arrays) if _is_leaves(leaf) else leaf
    return jax.tree.map(build, tree, is_leaf=_is_leaves)


def _is_module(x) -> bool:
    return isinstance(x, nnx.Module)


def _is_leaves(x) -> bool:
    return isinstance(x, Leaves)
