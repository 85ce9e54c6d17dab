import pytest
import torch

from torchdpcate.candidates.library import PolicyLibrary, threshold_grid
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import InputError

BOX = TableSchema.from_domain(Domain([-3.0] * 20, [3.0] * 20, 0.0, 1.0))
MIXED = TableSchema.from_dict(
    {
        "treatment": {"name": "mail", "categories": ["none", "men", "women"]},
        "outcome": {"name": "spend", "low": 0, "high": 1},
        "covariates": {
            "age": {"low": 0, "high": 100},
            "site": {"categories": list("abc")},
            "sex": {"categories": ["f", "m"]},
        },
    }
)


def test_twenty_covariates_make_160_policies_in_both_directions() -> None:
    library = PolicyLibrary.of(threshold_grid(BOX)).setup(BOX.domain, (0, 1))
    assert len(library) == 160
    assert library.names[:4] == ("x0 > -1.8", "x0 > -0.6", "x0 > 0.6", "x0 > 1.8")
    assert library.names[80] == "x0 <= -1.8"
    x = BOX.domain.grid(500)
    decisions = library.decide(x).bool()
    assert torch.equal(decisions[:, :80], ~decisions[:, 80:])
    assert torch.equal(decisions[:, 6], x[:, 1] > 0.6)


def test_categories_have_one_cut_and_more_actions_every_ordered_pair() -> None:
    library = PolicyLibrary.of(threshold_grid(MIXED, [0.25, 0.5])).setup(MIXED.domain, (1, 2, 3))
    # two cuts of age, one of each of three columns of site, one of sex; six pairs
    assert len(library) == 6 * (2 + 3 + 1)
    assert library.names[0] == "age > 25: 1, else 2"
    x = torch.tensor([[30.0, 0, 1, 0, 1], [20.0, 1, 0, 0, 0]], dtype=torch.float64)
    decided = dict(zip(library.names, library.decide(x).T.tolist(), strict=True))
    assert decided["age > 25: 3, else 1"] == [2, 0]
    assert decided["site=b > 0.5: 2, else 3"] == [1, 2]


@pytest.mark.parametrize("shares", [[], [0.0], [0.5, 1.0], ["much"], [float("nan")]])
def test_shares_outside_the_bounds_are_refused(shares) -> None:
    with pytest.raises(InputError, match="shares"):
        threshold_grid(BOX, shares)
