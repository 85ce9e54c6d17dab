"""The contract of every plan: a test class of a family inherits it, and names releases of its own.

An honest file verifies. One of which a constant, a fact, a charge or what follows from answers was changed does not,
though its costs, its sums and its sentence are made to fit. What was charged is what the plan requests, the plan is
made anew from the file, and it travels to another process.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.tools.replay.check import neighbours_for_replay, replay
from tests.verify import forgeries as forge
from torchdpcate.data.checked import with_outcomes, without_missing
from torchdpcate.data.records import CausalData
from torchdpcate.data.schema import TableSchema
from torchdpcate.errors import ReleaseFileError, VerificationError
from torchdpcate.estimators.base import PrivateEstimator
from torchdpcate.laws import AddedNoise
from torchdpcate.plan import Plan
from torchdpcate.privacy.mechanisms import KNormMechanism, k_norm_deviation
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.release.file import Release, load_release
from torchdpcate.verify import statement as known
from torchdpcate.verify.file import verify_release

Path_ = tuple[str | int, ...]
_RUNS = 4_000  # a standard deviation is off by 8 % once in ten million


class PlanContract:
    """Tests that every plan passes.

    Attributes:
        made: Releases that claim something, by name.
        default: Those that are forged by default; the others are slow.
        untold: Names of constants and facts, or of what is in them, that follow from nothing: they are as the file
            says.
        untold_in: Further ones of releases, by their names.
        worked_out: Names of tensors that follow from others.
        untold_charges: Purposes of charges of which no public fact gives the cost.
        concludes: Whether its plans make the release of answers alone.
    """

    made: ClassVar[dict[str, Callable[[], Release]]]
    default: ClassVar[tuple[str, ...]]
    untold: ClassVar[tuple[str, ...]] = ()
    untold_in: ClassVar[dict[str, tuple[str, ...]]] = {}
    worked_out: ClassVar[tuple[str, ...]] = ()
    untold_charges: ClassVar[tuple[str, ...]] = ()
    concludes: ClassVar[bool] = True

    @pytest.fixture(scope="class")
    def written(self, tmp_path_factory):
        """Return the path of a release by its name; each is made once."""
        return forge.written(self.made, tmp_path_factory.mktemp("contract"))

    def test_an_honest_file_verifies(self, case, written):
        assert dict(verify_release(written(case)))["level"].startswith(("certified", "conditional"))

    def test_the_plan_is_made_anew_from_the_file(self, case, written):
        release = load_release(written(case))
        plan = plan_of(release)
        assert list(plan.problems(release)) == []
        again = pickle.loads(pickle.dumps(plan))
        assert again.public() == plan.public()
        if self.concludes:
            assert again.conclude(plan.answers(release), release.privacy).summary() == release.summary()

    def test_what_was_charged_is_what_the_plan_asks_for(self, case, written):
        release = load_release(written(case))
        plan, charges = plan_of(release), [stated.charge for stated in release.privacy.charges]
        for query in plan.queries.values():
            assert any(map(query.covers, charges))
        if not plan.repeats:  # else the budget is that of one release of several
            assert release.privacy.epsilon <= plan.budget.epsilon * (1 + 1e-9)
            assert release.privacy.delta <= plan.budget.delta

    def test_noise_has_the_scale_that_the_plan_says(self, case, written):
        plan = plan_of(load_release(written(case)))
        for query in plan.queries.values():
            if isinstance(query.law, AddedNoise):
                zero = torch.zeros(query.law.size, dtype=torch.float64)
                drawn = query.law.draw(NoiseSource.fixed(3), max(_RUNS // query.law.size, 50), zero).flatten()
                assert float(drawn.std()) == pytest.approx(deviation(query.law), rel=0.15)

    def test_a_neighbour_moves_nothing_but_paid_answers(self, case, monkeypatch):
        seen: list[tuple[Any, CausalData]] = []
        fit = PrivateEstimator.fit

        def noted(learner: Any, x: Any, a: Any, y: Any, *rest: Any, weight: Any = None) -> Any:
            schema = TableSchema.of(learner.domain)
            given = CausalData(x, a, schema.one_column(y), weight=weight, follow_up=schema.follow_up_of(y))
            given = with_outcomes(without_missing(given, schema), schema)
            v = None if given.weight is None else schema.domain.weigh(given.weight, clip=False)
            seen.append((learner.domain, given.with_weight(v)))
            return fit(learner, x, a, y, *rest, weight=weight)

        monkeypatch.setattr(PrivateEstimator, "fit", noted)
        self.made[case]()
        [(domain, records)] = seen

        def pipeline(records: CausalData, noise: NoiseSource) -> Release:
            def replayed(learner: Any, x: Any, a: Any, y: Any, *rest: Any, weight: Any = None) -> Any:
                getattr(learner, "learner", learner).set_params(noise=noise)
                schema = TableSchema.of(domain)
                own = schema.own(records)["weight"] if records.weight is not None else None
                return fit(learner, records.x, records.a, schema.outcome_of(records), *rest, weight=own)

            monkeypatch.setattr(PrivateEstimator, "fit", replayed)
            return self.made[case]()

        report = replay(pipeline, records, *neighbours_for_replay(records, domain)[-2:])
        assert report.passed, str(report)
        assert report.outputs > 0

    def test_no_known_forgery_verifies(self, case, written, tmp_path):
        free = ("events without delta",) if self.untold_charges else ()
        edits = [(name, edit) for name, edit in forge.EVERY.items() if name not in free]
        passed, said = passing(written(case), edits, tmp_path)
        assert passed == []
        assert said >= 2

    def test_no_changed_constant_verifies(self, case, written, tmp_path):
        privacy, facts = (getattr(forge.opened(written(case)), name) for name in ("privacy", "facts"))
        edits = [
            *(
                (f"public {place}", changed("privacy", ("public", *place), other))
                for place, other in self._others(case, privacy["public"])
            ),
            *((f"facts {place}", changed("facts", place, other)) for place, other in self._others(case, facts)),
            *((f"no {name}", removed(name)) for name in privacy["public"] if name not in self._untold(case)),
            ("one more", changed("privacy", ("public", "extra"), 1.0)),
        ]
        passed, said = passing(written(case), edits, tmp_path)
        assert passed == []
        assert said == len(edits)

    def test_no_changed_charge_verifies(self, case, written, tmp_path):
        charges = forge.opened(written(case)).charges
        few = sorted({0, len(charges) // 2, len(charges) - 1})
        few = [place for place in few if charges[place]["purpose"] not in self.untold_charges]
        several = {"twice"} if self.untold_charges else set()  # as of two releases from one fit
        edits = [
            (f"{how} {place}", forge.claimed(EDITS[how](place))) for how in EDITS if how not in several for place in few
        ]
        passed, said = passing(written(case), edits, tmp_path)
        assert passed == []
        assert said >= len(few)

    def test_nothing_that_follows_from_answers_verifies_when_it_is_changed(self, case, written, tmp_path):
        tensors = forge.opened(written(case)).tensors
        edits = [(name, answered(name, lambda held: held * 1.01 + 1e-3)) for name in self.worked_out if name in tensors]
        passed, said = passing(written(case), edits, tmp_path)
        assert passed == []
        assert said == len(edits)

    def _untold(self, case: str) -> tuple[str, ...]:
        return self.untold + self.untold_in.get(case, ())

    def _others(self, case: str, values: dict[str, Any]) -> Iterator[tuple[Path_, Any]]:
        return ((place, other) for place, other in others(values) if not set(place) & set(self._untold(case)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of a ``PlanContract`` the names of its releases; a module of such a class imports it."""
    if metafunc.cls is None or "case" not in metafunc.fixturenames:
        return
    quick = metafunc.cls.default
    names = [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in metafunc.cls.made]
    metafunc.parametrize("case", names)


def deviation(law: AddedNoise) -> float:
    """Return the standard deviation of the noise in each number."""
    if isinstance(law.mechanism, KNormMechanism):
        return law.scale * k_norm_deviation(law.size, law.mechanism.norm)
    return law.scale * (1.0 if law.mechanism.norm == 2 else 2**0.5)


def verdict(path: Path) -> str | None:
    """Return why a file does not verify; None if it does."""
    try:
        verify_release(path)
    except (VerificationError, ReleaseFileError) as problem:
        return str(problem)
    return None


def passing(honest: Path, edits: Iterable[tuple[str, forge.Edit]], folder: Path) -> tuple[list[str], int]:
    """Return the forgeries that verify, and how many were refused, each in a short line."""
    passed, refused = [], 0
    for name, edit in edits:
        try:
            path = forge.forged(honest, edit, folder / "release.safetensors")
        except forge.DoesNotApplyError:
            continue
        said = verdict(path)
        if said is None:
            passed.append(name)
            continue
        assert "\n" not in said
        assert len(said) < 5000
        refused += 1
    return passed, refused


def plan_of(release: Release) -> Plan:
    """Return the plan that a release's public facts describe."""
    kind = known.plan_of(release.privacy.mechanism)
    assert kind is not None
    return kind.restated(release)


def others(values: Any, place: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """Return another value of each entry of nested plain values, with its place; of a list, of three entries."""
    if isinstance(values, dict):
        for key, value in values.items():
            yield from others(value, (*place, key))
    elif isinstance(values, list):
        for key in sorted({0, len(values) // 2, len(values) - 1} & set(range(len(values)))):
            yield from others(values[key], (*place, key))
    else:
        yield place, another(values)


def another(value: Any) -> Any:
    """Return a plain value of the same kind that is another one."""
    if value is None or isinstance(value, str):
        return 1.0 if value is None else f"{value}x"
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value * 1.01 + 1e-6


def changed(part: str, place: Path_, value: Any) -> forge.Edit:
    """Put a value at a place of the statement or of the facts."""

    def edit(draft: forge.Draft) -> None:
        held = getattr(draft, part)
        for key in place[:-1]:
            held = held[key]
        held[place[-1]] = value

    return edit


def removed(name: str) -> forge.Edit:
    """Leave a public constant out."""
    return lambda draft: draft.privacy["public"].pop(name)


def answered(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> forge.Edit:
    """Change the numbers of a tensor."""

    def edit(draft: forge.Draft) -> None:
        before = draft.tensors[name]
        draft.tensors[name] = change(before)
        if torch.equal(draft.tensors[name], before):
            raise forge.DoesNotApplyError

    return edit


def dropped(place: int) -> forge.Edit:
    """Leave a charge out."""
    return lambda draft: holder(draft, place)["charges"].remove(draft.charges[place])


def twice(place: int) -> forge.Edit:
    """State a charge twice."""
    return lambda draft: holder(draft, place)["charges"].append(deepcopy(draft.charges[place]))


def cheaper(place: int) -> forge.Edit:
    """State that a charge was for half of its cost."""

    def edit(draft: forge.Draft) -> None:
        event = draft.charges[place]["event"]
        if "noise_multiplier" in event:
            event["noise_multiplier"] *= 2
        else:
            event["epsilon"] /= 2

    return edit


def for_another(place: int) -> forge.Edit:
    """State that a charge was for something else."""
    return lambda draft: draft.charges[place].update(part="another")


def called_certified(place: int) -> forge.Edit:
    """State that a charge has a proof without conditions."""

    def edit(draft: forge.Draft) -> None:
        if draft.charges[place]["level"] == "certified":
            raise forge.DoesNotApplyError
        draft.charges[place]["level"] = "certified"

    return edit


def holder(draft: forge.Draft, place: int) -> dict[str, Any]:
    """Return the block that holds a charge."""
    wanted = draft.charges[place]
    return next(block for block in draft.privacy["blocks"] if any(charge is wanted for charge in block["charges"]))


EDITS: dict[str, Callable[[int], forge.Edit]] = {
    "dropped": dropped,
    "twice": twice,
    "cheaper": cheaper,
    "for another": for_another,
    "called certified": called_certified,
}
