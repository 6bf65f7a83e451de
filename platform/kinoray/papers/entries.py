"""What `kinoray reproduce` can make: figures and tables of the papers, as data. A new figure is a new entry.

An entry names the sweeps behind it, what is drawn over what, and what the paper says of it: in words, and as claims
that measured numbers answer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Curve = Mapping[Any, float]
"""Value at each point of a knob, in the space's order; nan where there is none."""


class Claim(Protocol):
    """One sentence of a paper about one metric of one method."""

    @property
    def words(self) -> str: ...

    @property
    def metric(self) -> str: ...

    @property
    def method(self) -> str:
        """Whose curve; "": that of the entry's first method."""

    def margin(self, curve: Curve) -> float:
        """By how many points a curve shows it: above 0 it does, nan where points are missing."""


@dataclass(frozen=True, kw_only=True)
class Higher:
    """The metric is higher at one point than at each of some others."""

    words: str
    metric: str
    at: Any
    than: tuple[Any, ...]
    method: str = ""

    def margin(self, curve: Curve) -> float:
        """Value at the point less the highest of the others'."""
        others = [curve[point] for point in self.than]
        return math.nan if any(map(math.isnan, others)) else curve[self.at] - max(others)


@dataclass(frozen=True, kw_only=True)
class PeakInside:
    """The metric is highest at neither end of the curve."""

    words: str
    metric: str
    method: str = ""

    def margin(self, curve: Curve) -> float:
        """Highest value between the ends less the higher end's."""
        first, *inner, last = curve.values()
        return math.nan if any(map(math.isnan, curve.values())) else max(inner) - max(first, last)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A figure or table of a paper."""

    title: str
    place: str
    """Paper and place in it."""
    sweeps: Mapping[str, str]
    """Method -> name of its search sub-space; all of them vary `over` alone. One line in each panel for each."""
    over: str
    """The setting on the horizontal axis."""
    panels: Mapping[str, str]
    """Metric of the test splits -> what the paper calls it: one panel each."""
    beside: tuple[str, ...] = ()
    """More metrics for the table."""
    published: str
    """The published trend in words."""
    source: str
    """Where the paper says so."""
    claims: tuple[Claim, ...]
    stream: str = "moving-cvlm"
    """Stream by default."""
    paper_stream: str = "cvlm"
    """The stream of the paper."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What is set for all points beside the sub-space."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics of the table, those of the panels first."""
        return (*self.panels, *self.beside)


REPRODUCTIONS: dict[str, Entry] = {
    "bmu-fig4": Entry(
        title="BMU-MoCo: overall R@1 (current), overall R@1 (final) and HM over m_hat, m fixed",
        place="Gao et al., BMU-MoCo, NeurIPS 2022, Figure 4",
        sweeps={"bmu_moco": "bmu-fig4"},
        over="m_hat",
        panels={"R@1_current": "Overall R@1 (current)", "R@1": "Overall R@1 (final)", "HM": "Overall HM"},
        beside=("FR",),
        published=(
            "m_hat can be neither too big nor too small. Too big (0.999 and 1), what the momentum encoders keep is not "
            "well reviewed; too small (0.9), learning by gradient suffers, which makes overall R@1 (current) and HM "
            "bad, while FR is lower (14.95, against 22.63 at 0.99 in Table 1). The paper takes 0.99: R@1 (final) "
            "35.47, HM 37.59."
        ),
        source="Sec. 4.3 and Table 1; of the figure itself only the text is at hand, so no value is read off it",
        claims=(
            PeakInside(words="HM is best where m_hat is neither too big nor too small.", metric="HM"),
            Higher(
                words="Too big an m_hat (0.999, 1) reviews too little: R@1 (final) is lower than at 0.99.",
                metric="R@1",
                at=0.99,
                than=(0.999, 1.0),
            ),
            Higher(
                words="Too small an m_hat (0.9) hinders learning: R@1 (current) is lower than at 0.99.",
                metric="R@1_current",
                at=0.99,
                than=(0.9,),
            ),
            Higher(words="HM at 0.9 is lower than at 0.99, too.", metric="HM", at=0.99, than=(0.9,)),
            Higher(words="FR at 0.9 is lower (better) than at 0.99.", metric="FR", at=0.99, than=(0.9,)),
        ),
    ),
}


def listed() -> list[dict[str, str]]:
    """Name of each, and what it is."""
    return [{"name": name, "about": f"{entry.title} ({entry.place})"} for name, entry in REPRODUCTIONS.items()]
