"""What an experiment is: a configuration per profile, a plan of units, a measurement, a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lengthgen.results import Result, Unit, environment, to_json
from lengthgen.units import computed, longest_first

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PROFILES", "Experiment"]

PROFILES = ("quick", "paper")


def _rounded(value: Any) -> Any:
    """Round numbers to ten significant digits: more than any of them is worth."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.10g}") if isinstance(value, float) else value


@dataclass(frozen=True)
class Experiment:
    """An experiment of the book.

    Args:
        name: its name on the command line and of its files.
        title: what it measures, in one line.
        module: the module whose code its result depends on.
        profiles: a frozen configuration for each profile, with a field `n_seeds`.
        plan: lists the units of work of a configuration; they may run in any order, in parallel.
        measure: reads the units and returns `(rows, summary)`.
        plot: draws a result.
    """

    name: str
    title: str
    module: str
    profiles: dict[str, Any]
    plan: Callable[[Any], Iterable[tuple[Unit, Any]]]
    measure: Callable[[Any], tuple[list[dict[str, Any]], dict[str, Any]]]
    plot: Callable[[Result], Figure]

    def config(self, profile: str, n_seeds: int | None = None) -> Any:
        """Return the configuration of a profile, with another number of seeds if asked for.

        Raises:
            ValueError: an unknown profile or fewer than one seed.
        """
        if profile not in self.profiles:
            raise ValueError(f"unknown profile {profile!r}; choose from {', '.join(PROFILES)}")
        if n_seeds is not None and n_seeds < 1:
            raise ValueError(f"seeds={n_seeds} is not allowed: it must be at least 1")
        config = self.profiles[profile]
        return config if n_seeds is None else replace(config, n_seeds=n_seeds)

    def run(
        self,
        profile: str = "quick",
        *,
        n_seeds: int | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> Result:
        """Compute, here, what is not in the cache and return the result.

        Args:
            profile: `quick` or `paper`.
            n_seeds: number of seeds instead of the profile's.
            log: called with a line per unit: what computing it took.
        """
        config = self.config(profile, n_seeds)
        work = list(self.plan(config))
        for _ in computed(longest_first(work)):
            pass  # kept: `measure` reads the values
        rows, summary = self.measure(config)
        rows = _rounded(to_json(rows))
        seconds = [unit.seconds(unit_config) for unit, unit_config in work]
        for (unit, unit_config), taken in zip(work, seconds, strict=True):
            log(f"{taken:8.2f} s  {unit.__name__} {unit.key(unit_config)}")
        return Result(
            experiment=self.name,
            profile=profile,
            config=to_json(config),
            seeds=sorted({row["seed"] for row in rows if "seed" in row}),
            rows=rows,
            summary=to_json(summary),
            seconds=round(sum(seconds, 0.0), 2),
            environment=environment(self.module),
        )
