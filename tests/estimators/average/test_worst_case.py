"""Games on stage two and on the complete effect: neighbours, exact evidence, honest noise that is not refuted."""

import pytest
import torch

from torchdpcate.estimators.average import worst_case


@pytest.mark.parametrize("treated", [0.0, 1.0])
def test_the_worlds_differ_in_one_record(treated):
    one, other = worst_case._weighted(1.0), worst_case._weighted(0.0, treated)
    differ = torch.stack([(a != b)[0] for a, b in zip(one, other, strict=True)]).any(0)
    assert differ.nonzero().flatten().tolist() == [0]
