"""Replays of effects in subgroups with what is made of a release; the contract of plans replays the others."""

import pytest
import torch
from sklearn.base import clone

from tests.tools.replay.check import Run, neighbours_for_replay, replay
from torchdpcate.data.domain import Domain
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.estimators.subgroups import learner as module
from torchdpcate.estimators.subgroups.learner import SubgroupEffects, shrunk
from torchdpcate.estimators.subgroups.plan import SubgroupPlan
from torchdpcate.privacy.budget import PrivacyBudget

N = 150


def report(**settings):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(N, 2, generator=generator, dtype=torch.float64)
    x[:, 0] = x[:, 0].round()
    a = (torch.rand(N, generator=generator) < 0.5).double()
    y = (a * x[:, 0] + 0.1 * torch.rand(N, generator=generator, dtype=torch.float64)).clamp(-1, 1)
    domain = Domain([0.0] * 2, [1.0] * 2, -1.0, 1.0, overlap=0.2, two_levels=[True, False], better="higher")
    cells = [{"x0": True}, {"x1": [0.3, 0.6]}]
    learner = SubgroupEffects(domain, PrivacyBudget(2.0, 1e-5), subgroups=cells, **settings)

    def pipeline(records, noise):
        fresh = clone(learner).set_params(noise=noise, ledger_path=None)
        fresh.fit(records.x, records.a, records.y, TableSchema.of(domain).own_propensity(records))
        release = fresh.release()
        release.table(), release.summary(), shrunk(release)
        return Run(release, None)

    records = CausalData(x, a, y)
    return replay(pipeline, records, *neighbours_for_replay(records, domain))


@pytest.mark.first(1)
@pytest.mark.parametrize(("propensity", "outputs"), [("randomised", 1), ("fitted", 2)])
def test_effects_in_subgroups_pass_with_their_tables(propensity, outputs):
    found = report(propensity=propensity)
    assert found.passed, str(found)
    assert found.outputs == outputs


def test_sums_that_leave_without_noise_are_found(monkeypatch):
    by_cell = SubgroupPlan.by_cell
    monkeypatch.setattr(SubgroupPlan, "by_cell", lambda plan, numbers: by_cell(plan, numbers) + leak["sums"])
    leak = {}
    sums = module.cell_sums

    def keep(*given):
        leak["sums"] = 1e-3 * sums(*given)
        return sums(*given)

    monkeypatch.setattr(module, "cell_sums", keep)
    assert not report(propensity="randomised").passed
