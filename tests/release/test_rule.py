import numpy as np
import pytest
import torch

from tests.verify.forgery import rewritten, statement
from torchdpcate import load_release
from torchdpcate.data.domain import Domain
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import ReleaseFileError
from torchdpcate.fit.feature_maps import Fourier, Identity
from torchdpcate.privacy.guarantee import Level
from torchdpcate.release.file import save_release
from torchdpcate.release.rule import RuleRelease

DOMAIN = Domain([0.0, -1.0], [1.0, 1.0], -2.0, 2.0, names=["age", "dose"], better="higher")


def rule(features=None):
    psi = (features or Identity()).setup(DOMAIN)
    theta = torch.linspace(-1, 1, psi.dimension, dtype=torch.float64)
    return RuleRelease(theta, psi, TableSchema.from_domain(DOMAIN), statement(Level.CERTIFIED))


def test_the_score_is_linear_and_its_sign_decides():
    release, x = rule(), DOMAIN.grid(200)
    score = (-1 + 0 * x[:, 0] + 1 * x[:, 1]) / 3**0.5
    torch.testing.assert_close(release.score_tensor(x), score, rtol=0, atol=1e-15)
    assert np.array_equal(release.decide(x), (score > 0).numpy().astype(np.int64))
    assert release.decide([[0.5, 1.0]]).tolist() == [0]  # a score of zero does not treat
    assert release.column == "decision"


@pytest.mark.parametrize("features", [Identity(), Identity(centred=False), Fourier(pairs=7, seed=3)])
def test_a_file_gives_the_same_rule_back(features, tmp_path):
    release, x = rule(features), DOMAIN.grid(50)
    back = load_release(save_release(release, tmp_path / "rule.safetensors"))
    assert isinstance(back, RuleRelease)
    assert torch.equal(back.theta, release.theta)
    # a product may end in another last bit where the same numbers lie elsewhere in memory
    np.testing.assert_allclose(back.score(x), release.score(x), rtol=1e-12, atol=1e-14)
    assert back.privacy == release.privacy


def test_made_up_files_are_no_rules(tmp_path):
    path = save_release(rule(), tmp_path / "rule.safetensors")
    for facts in (
        '{"features": {"name": "fourier", "pairs": 1000000000}}',
        '{"features": {"name": "representation"}}',
        '{"features": {"name": "os.system"}}',
        "{}",
    ):
        with pytest.raises(ReleaseFileError):
            load_release(rewritten(path, facts=facts))
