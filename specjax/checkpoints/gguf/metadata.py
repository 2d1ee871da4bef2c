"""The metadata of an architecture, with a record of the keys that were read."""

from collections.abc import Collection
from typing import Any

import numpy as np

from ...errors import ConfigError
from ..json_fields import show
from .reader import GgufFile


def shortest(value: float) -> float:
    """The shortest decimal number that float32 rounds to the value: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))


class Metadata:
    """The keys of a file that begin with the name of its architecture, and its tensors' shapes."""

    def __init__(self, file: GgufFile, architecture: str):
        self.file = file
        self._prefix = f"{architecture}."
        self._read: set[str] = set()

    def get(self, key: str) -> Any:
        """The value of a key, None without it.

        A list with one number for all layers is the number. Raises ConfigError where layers differ.
        """
        self._read.add(self._prefix + key)
        value = self.file.metadata.get(self._prefix + key)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise ConfigError(f"{self.where(key)} is {show(value)}; layers that differ are not supported")
            value = value[0]
        return shortest(value) if isinstance(value, float) else value

    def per_layer(self, key: str) -> list:
        """The values of a key for each layer; one value stands for all, and [] for no key."""
        self._read.add(self._prefix + key)
        value = self.file.metadata.get(self._prefix + key, [])
        return value if isinstance(value, list) else [value]

    def common_size(self, key: str) -> int:
        """The size that a key gives for the layers with some part; 0 stands for a layer without.

        Raises ConfigError for anything else, and where the sizes differ.
        """
        sizes = {size for size in self.per_layer(key) if size != 0} or {0}
        if len(sizes) > 1:
            raise ConfigError(f"{self.where(key)} is {show(self.per_layer(key))}; layers that differ are not supported")
        (size,) = sizes
        return self._check(key, size, type(size) is int and size >= 0, "a whole number")

    def need(self, key: str) -> int:
        """The size that a key gives. Raises ConfigError without the key, and for anything else."""
        value = self.get(key)
        if value is None:
            raise ConfigError(f"{self.where(key)} is missing; use a file that a current llama.cpp wrote")
        return self._check(key, value, type(value) is int and value > 0, "a whole number from 1")

    def count(self, key: str) -> int:
        """The number that a key gives, 0 without the key. Raises ConfigError for anything else."""
        value = self.get(key) or 0
        return self._check(key, value, type(value) is int and value >= 0, "a whole number")

    def number(self, key: str) -> float:
        """The number that a key gives, 0 without the key. Raises ConfigError for anything else."""
        value = self.get(key) or 0
        return self._check(key, value, type(value) in (int, float) and value >= 0, "a number from 0")

    def _check(self, key: str, value: Any, accepted: bool, allowed: str) -> Any:
        if not accepted:
            raise ConfigError(f"{self.where(key)} is {show(value)}; it must be {allowed}; download the file again")
        return value

    def has(self, *tensors: str) -> bool:
        """Whether the model, or one of its layers, has one of the tensors."""
        ends = tuple(f".{name}" for name in tensors)
        return any(name in tensors or name.endswith(ends) for name in self.file.tensors)

    def rows(self, tensor: str) -> int:
        """The number of a tensor's rows. Raises ConfigError without it."""
        if tensor not in self.file.tensors:
            raise ConfigError(f"{self.file.path}: {tensor} is missing; name the file with a whole model")
        return self.file.tensors[tensor].get_shape()[0]

    def where(self, key: str) -> str:
        """The place of a key, for messages."""
        return f"{self.file.path}: {self._prefix}{key}"

    def refuse_others(self, harmless: Collection[str]) -> None:
        """Raises ConfigError for a key that is set, and neither was read nor is harmless."""
        for name, value in self.file.metadata.items():
            key = name.removeprefix(self._prefix)
            unread = name.startswith(self._prefix) and name not in self._read and key not in harmless
            if unread and value not in (0, False, "", [], "none"):
                raise ConfigError(
                    f"{self.file.path}: {show(name)} = {show(value)} is not supported; use another file of the model"
                )
