"""The steps of an engine. A thread makes them, or the caller who waits."""

import threading
from collections.abc import Callable
from typing import Self

from ..parallel import end_all, is_first_host
from . import multi_host
from .handle import Handle


class StepThread:
    """The base of ``Engine``, which defines ``step`` and ``has_work``.

    Attributes:
      changed: notified after every change of a request, and when requests come.
      listeners: called with the handle of each request that has ended. The thread that ends it
        waits for them.
    """

    _is_shared = False
    """Whether engines of several hosts make the same steps, see ``engine.multi_host``."""

    def __init__(self):
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.changed = threading.Condition(threading.RLock())
        self.listeners: list[Callable[[Handle], object]] = []

    def step(self) -> bool:
        """Makes a step. Returns whether work is left."""
        raise TypeError(f"{type(self).__name__} must define step")

    @property
    def has_work(self) -> bool:
        """Whether a step has something to do."""
        raise TypeError(f"{type(self).__name__} must define has_work")

    def start(self) -> Self:
        """Starts a thread that drives the device until ``stop``."""
        if not self.is_started:
            self._stopping = False
            self._thread = threading.Thread(target=self._drive, name="specjax engine", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Waits for all requests, and ends the thread. On several hosts it ends ``follow`` too."""
        with self.changed:
            self._stopping = True
            self.changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._is_shared and is_first_host():
            multi_host.broadcast(None)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_) -> None:
        self.stop()

    @property
    def is_started(self) -> bool:
        """Whether a thread drives the device."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self, until: Callable[[], bool]) -> None:
        """Waits until ``until()`` is true. Without a thread the caller drives the device."""
        while not until():
            if self.is_started:
                with self.changed:
                    self.changed.wait_for(lambda: until() or not self.is_started, 1.0)
            else:
                self.step()

    def _drive(self) -> None:
        while self.has_work or not self._stopping:
            with self.changed:
                self.changed.wait_for(
                    lambda: self.has_work or self._stopping, multi_host.BEAT if self._is_shared else None
                )
            try:
                self.step()
            except Exception as error:  # the handles raise it
                if self._is_shared:  # the steps of the others are no longer the same
                    end_all(f"a step of the engine has failed ({' '.join(str(error).split())[:200]})")
