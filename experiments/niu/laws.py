"""Records of a design of Niu et al. (2022), and where the effect is requested: fresh points of the law, tails included.

The library and whatever else has public bounds see records and points within the domain of ``data=niu``; the truth is
the effect at the point as it was drawn, so that moving a point to its bound counts as an error.
"""

from dataclasses import dataclass

from experiments.defaults.sources import Case
from experiments.designs.niu import Niu
from torchdpcate.data.records import CausalData, public_generator

POINTS = 10_000


@dataclass(frozen=True, eq=False)
class Sample:
    """The same records twice.

    Attributes:
        bounded: As who has public bounds sees them.
        drawn: As they were drawn.
    """

    bounded: Case
    drawn: Case


def sample(design: str, n: int, seed: int) -> Sample:
    """Draw n records and ``POINTS`` fresh points.

    Args:
        design: A to E.
        n: Records.
        seed: Public, with design and n.
    """
    law = Niu(design)
    domain, schema = law.domain(), law.schema()
    drawn = law.draw(n, public_generator(seed, f"Niu {design}, n = {n}, records"))
    points = law.draw(POINTS, public_generator(seed, f"Niu {design}, n = {n}, points")).x
    truth = law.effect(points)
    within = CausalData(domain.clip_covariates(drawn.x), drawn.a, domain.clip_outcome(drawn.y))
    bounded = Case(schema, within, domain.clip_covariates(points), truth)
    return Sample(bounded, Case(schema, drawn, points, truth))
