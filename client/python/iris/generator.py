"""Generator: the seed and the number of calls, of which with an element's place its random bits are a function."""

from __future__ import annotations

import threading
from typing import Any, Optional, Tuple

from iris import _foreign
from iris.errors import InvalidArgumentError

# torch's generators have it before a program seeds them.
DEFAULT_SEED = 67280421310721


class Generator:
    """A seeded source of random tensors: equal seeds give equal tensors, on every rank and every backend. Each call of
    a factory takes the next number of calls. Thread-safe."""

    def __init__(self, seed: int = DEFAULT_SEED) -> None:
        self._mutex = threading.Lock()
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> "Generator":
        """Starts anew from a seed of 64 bits. Returns itself."""
        if not -2**63 <= seed < 2**64:
            raise InvalidArgumentError(f"a seed has 64 bits, and {seed} has more")
        self.set_state((seed, 0))
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._state[0]

    def get_state(self) -> Tuple[int, int]:
        """(seed, calls so far); set_state takes it."""
        return self._state

    def set_state(self, state: Tuple[int, int]) -> None:
        """Continues from a get_state."""
        with self._mutex:
            self._state = (int(state[0]) % 2**64, int(state[1]) % 2**64)

    def next_call(self) -> Tuple[int, int]:
        """The seed, and the number of the call that draws from now on."""
        with self._mutex:
            seed, call = self._state
            self._state = (seed, (call + 1) % 2**64)
            return seed, call


def generator_of(generator: Optional[Any], default: Generator) -> Generator:
    """The generator that an argument means: one of Iris, one of torch's, from which a seed is drawn, or none."""
    if generator is None:
        return default
    if isinstance(generator, Generator):
        return generator
    seed = _foreign.seed_from_torch(generator)
    if seed is None:
        raise TypeError(f"a generator is an iris.Generator or one of torch's, and not {type(generator).__name__}")
    return Generator(seed)
