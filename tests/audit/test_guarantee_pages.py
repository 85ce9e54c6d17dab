"""The pages of docs/guarantees: names of code, levels, links and numbers hold, and so do the steps of the proofs.

The first half lets no page say what the code does not do. The second half checks by numbers those steps that no other
test checks; each is shown to fail where the page says that it ends.
"""

import math
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

from tests.privacy.scaled_gaussians import exact_delta
from torchdpcate.audit.report import registry
from torchdpcate.estimators.cate.mechanisms import worst_pairs
from torchdpcate.estimators.cate.mechanisms.local_sensitivity import InfluencePerturbation
from torchdpcate.estimators.cate.mechanisms.perturbation import ObjectivePerturbation
from torchdpcate.estimators.cate.mechanisms.worst_pairs import FAR, NEAR, linear_stage, queries
from torchdpcate.heads.linear import sensitivity, solve_perturbed
from torchdpcate.privacy.budget import PrivacyBudget
from torchdpcate.privacy.calibration import smoothness
from torchdpcate.privacy.guarantee import Guarantee, Level
from torchdpcate.privacy.mechanisms import GaussianMechanism
from torchdpcate.privacy.noise import NoiseSource
from torchdpcate.privacy.worst_case import Game
from torchdpcate.verify.statement import plan_names

PROJECT = Path(__file__).parents[2]
FOLDER, PACKAGE = PROJECT / "docs" / "guarantees", PROJECT / "torchdpcate"
WRITTEN = {"README"}  # by the audit
PAGES = {
    page.stem: page.read_text(encoding="utf-8") for page in sorted(FOLDER.glob("*.md")) if page.stem not in WRITTEN
}
BUDGET = PrivacyBudget(1.0, 1e-5)
ROW = re.compile(r"^\| `(\w+)` \| (certified|conditional|heuristic) \| (.*) \|$", re.MULTILINE)
NAME = re.compile(r"`(torchdpcate(?:\.\w+)+)`")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


def unknown_names(text: str) -> list[str]:
    """Dotted names of the library that do not exist; or that none is named."""
    names = NAME.findall(text)
    return [name for name in names if not exists(name)] if names else ["no code is named"]


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one, a class's fields and constants included."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if find_spec_safely(".".join(parts[:length])):
            found = import_module(".".join(parts[:length]))
            for part in parts[length:]:
                if not hasattr(found, part) and part not in getattr(found, "__annotations__", {}):
                    return False
                found = getattr(found, part, None)
            return True
    return False


def source_of(name: str) -> Path:
    """File of the module that a dotted name begins with."""
    parts = name.split(".")
    modules = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    found = find_spec(next(filter(find_spec_safely, modules)))
    return Path(found.origin)


def find_spec_safely(module: str) -> bool:
    """Whether there is a module of this name."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent is no package
        return False


def dead_links(text: str) -> list[str]:
    """Relative links that lead nowhere."""
    return [link for link in LINK.findall(text) if "//" not in link and not (FOLDER / link).exists()]


def rows(name: str) -> list[tuple[str, str]]:
    """Level and claim of a mechanism in the tables of all pages."""
    return [(level, claim) for text in PAGES.values() for found, level, claim in ROW.findall(text) if found == name]


def wrong_level(level: str, claim: str, guarantee: Guarantee) -> list[str]:
    """What a page says of level and claim that the declaration does not."""
    if level != guarantee.level.value:
        return [level]
    if guarantee.holds_claim:
        pure = guarantee.budget is not None and guarantee.budget.delta == 0
        begins = r"pure $\varepsilon$" if pure else r"$(\varepsilon, \delta)$"
        return [] if claim.startswith(begins) else [claim]
    reads_like_one = re.findall(r"private|pure|\(\\varepsilon|\(epsilon|\(1, ?1", claim)
    return reads_like_one + ([] if claim.startswith("none") else [claim])


def unchecked_numbers(text: str) -> list[str]:
    """Test values that the file beside them does not hold."""
    if "## Test values\n" not in text:
        return []
    section = text.split("## Test values\n")[1].split("\n## ")[0]
    problems = []
    for entry in section.split("\n- ")[1:]:
        files = [FOLDER / link for link in LINK.findall(entry)] + [source_of(name) for name in NAME.findall(entry)]
        sources = "".join(file.read_text(encoding="utf-8") for file in files)
        numbers = re.findall(r"`([\d.e-]+)`", entry)
        problems += [n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(n)}(?!\d)", sources)]
        problems += [] if numbers else [f"no number: {entry}"]
    return problems


def unsafe_math(text: str) -> list[str]:
    """Inline formulas that Markdown would change: escaped punctuation, stars, a dollar sign without its twin."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    lonely = [line for line in prose.splitlines() if line.count("$") % 2]
    return lonely + [m for m in re.findall(r"\$[^$]*\$", prose) if re.search(r"\\[^A-Za-z\s]|\*", m)]


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_says_stands_in_the_code(name):
    text = PAGES[name]
    assert dead_links(text) == []
    assert unchecked_numbers(text) == []
    assert unsafe_math(text) == []
    assert unknown_names(text) == []


def test_a_page_begins_with_the_mechanisms_that_it_covers():
    for name, text in PAGES.items():
        first, *others = text.split("\n## ")
        assert ROW.findall(first), name
        assert "README.md" in LINK.findall(first), name  # where they are attacked
        assert not any(ROW.findall(other) for other in others), name


def test_every_audited_mechanism_has_one_row_and_every_row_a_mechanism():
    found = [name for text in PAGES.values() for name, _, _ in ROW.findall(text)]
    assert sorted(found) == sorted(registry())


def test_every_mechanism_of_a_statement_is_named_by_a_page():
    text = "".join(PAGES.values())
    unnamed = {name for name in plan_names() if f"`{name}`" not in text}
    assert unnamed == {"plug_in"}  # post-processing of the nuisances


@pytest.mark.first(4)
@pytest.mark.parametrize("name", sorted(registry()))
def test_level_and_claim_are_those_of_the_declaration(name, monkeypatch):
    monkeypatch.setattr(worst_pairs, "_SCALE_RUNS", 2)  # an adversary's estimate; no level depends on it
    game = registry()[name].make(BUDGET)
    # a game of another kind audits what is certified
    guarantee = game.guarantee if isinstance(game, Game) else Guarantee(Level.CERTIFIED, game.budget)
    ((level, claim),) = rows(name)
    assert wrong_level(level, claim, guarantee) == []


def test_the_sources_of_the_library_name_pages_that_exist():
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r"docs/guarantees/(\w+)\.md", sources))
    assert named
    assert named <= set(PAGES)


def test_planted_mistakes_are_found():
    page, ((level, claim),) = PAGES["two_blocks"], rows("output")
    assert unknown_names(page.replace("OutputPerturbation.law", "OutputPerturbation.lawless"))
    assert unknown_names("nothing") == ["no code is named"]
    assert "gone.md" in dead_links(page + "[gone](gone.md)")
    assert unchecked_numbers(page.replace("0.133333333", "0.133333334")) == ["0.133333334"]
    assert unsafe_math(r"so $a\,b$ and $P^*$") == [r"$a\,b$", "$P^*$"]
    none = Guarantee(Level.HEURISTIC, None)
    assert wrong_level(level, claim, none)
    assert wrong_level(level, claim, Guarantee(Level.CERTIFIED, PrivacyBudget(1.0, 0.0)))
    assert not wrong_level("heuristic", "none", none)
    assert wrong_level("heuristic", r"none; it is $(\varepsilon, \delta)$-private", none)


def test_the_declared_pair_attains_the_huber_sensitivity():
    before, after = (linear_stage((NEAR, y), n=100, ridge=0.1, threshold=0.01) for y in (-0.5, 0.5))
    assert (before.theta - after.theta).norm().item() == pytest.approx(sensitivity(before.problem), rel=1e-8)


def linear_term(theta: torch.Tensor, v: torch.Tensor, s: torch.Tensor, ridge: float, tau: float):
    """b_D(theta) and ln det of minus its Jacobian, theta [k, p]."""
    r = s - theta @ v.T
    b = 2 * r.clamp(-tau, tau) @ v - 2 * len(s) * ridge * theta
    inside = (r.abs() <= tau).to(v)
    M = 2 * torch.einsum("kn,ni,nj->kij", inside, v, v) + 2 * len(s) * ridge * torch.eye(v.shape[1]).to(v)
    return b, torch.logdet(M)


@pytest.mark.parametrize("seed", range(4))
def test_four_vertices_bound_the_loss_of_objective_perturbation(seed):
    generator = torch.Generator().manual_seed(seed)
    n, bound, tau, ridge, scale = 3, 0.9, 0.3, 0.1, 2.0
    v = torch.randn(n + 1, 2, dtype=torch.float64, generator=generator)
    v *= bound / v.norm(dim=1, keepdim=True)
    s = torch.randn(n + 1, dtype=torch.float64, generator=generator)
    theta = 3 * torch.randn(20_000, 2, dtype=torch.float64, generator=generator)
    (b, here), (other, there) = (linear_term(theta, v[k], s[k], ridge, tau) for k in ([0, 2, 3], [1, 2, 3]))
    loss = (other.square().sum(1) - b.square().sum(1)) / (2 * scale**2) + here - there
    vertices = [2 * tau * (p * v[0] + q * v[1]) for p in (-1, 1) for q in (-1, 1)]
    four = torch.stack([((b - h).square() - b.square()).sum(1) / (2 * scale**2) for h in vertices]).amax(0)
    jacobian = math.log1p(bound**2 / (n * ridge))
    assert (loss - four).max() <= jacobian + 1e-9
    assert (loss - four).max() > 0  # without epsilon_J it would be wrong


def grid_guesses(cover: GaussianMechanism | None) -> list[float]:
    """How often "D'" is guessed on D and on D' by whether the linear term of theta lies on the public grid."""
    stages = [linear_stage((NEAR, y), n=10, ridge=1.0, threshold=0.01) for y in (-0.5, 0.5)]
    problems, noise, said = [s.problem for s in stages], NoiseSource.system(), []
    proper = ObjectivePerturbation.calibrated(problems[0], BUDGET)
    scale = proper.scale
    for problem in problems:
        linear_terms = proper.draw(noise, 4_000)
        theta = (cover or proper.solver).add_noise(solve_perturbed(problem, linear_terms / problem.n), noise)
        steps = [linear_term(theta, p.v, p.s, p.ridge, p.threshold)[0] / noise.tilt_grid(scale) for p in problems]
        before, after = ((2 * math.pi * b).cos().sum(1) for b in steps)
        said.append((after > before).double().mean().item())
    return said


@pytest.mark.slow
def test_the_grid_of_the_objective_noise_is_covered(monkeypatch):
    # chance is off by 0.05 once in a billion
    assert grid_guesses(None) == pytest.approx([0.5, 0.5], abs=0.05)
    # on the grid of other noise the solver's stop alone would not cover it, and refute epsilon = 1
    monkeypatch.setattr(NoiseSource, "tilt_grid", staticmethod(NoiseSource.grid))
    problem = linear_stage((NEAR, 0.5), n=10, ridge=1.0, threshold=0.01).problem
    stop = GaussianMechanism(PrivacyBudget(0.01, 1e-7), problem.tolerance / problem.ridge)
    false, true = grid_guesses(stop)
    assert math.log(true / false) > 1.5


def worst_delta(epsilon: float, delta: float, d: int) -> float:
    """Largest over scale ratios of the earlier noise, means apart by the whole sensitivity."""
    xi, h = smoothness(epsilon, delta, d), epsilon / (5 * math.sqrt(2 * math.log(2 / delta)))
    return max(exact_delta(epsilon, d, t, h) for t in xi * np.linspace(-1, 1, 20))


@pytest.mark.parametrize("delta", [1e-6, 1e-5, 1e-3])
@pytest.mark.parametrize("d", [1, 30, 300])
def test_the_earlier_smooth_noise_keeps_its_delta_as_far_as_its_proof_goes(d, delta):
    assert max(worst_delta(e, delta, d) for e in (0.1, 1, 10, 3 * math.log(2 / delta))) < delta


def test_the_earlier_smooth_noise_fails_for_a_huge_epsilon():
    """The formula by itself, which is why the code refuses it (``test_calibration``)."""
    assert worst_delta(100, 1e-5, 1) > 1e-5


@pytest.mark.parametrize("rate", [0.1, 0.6])
@pytest.mark.parametrize("epsilon", [-0.5, 0.0, 0.5])
def test_opposite_gradients_are_the_worst_for_dp_sgd(rate, epsilon):
    grid = np.linspace(-7, 7, 281)
    laws = {}

    def density(m: tuple[float, float]) -> np.ndarray:
        if m not in laws:
            laws[m] = np.outer(norm.pdf(grid - m[0]), norm.pdf(grid - m[1])) * (grid[1] - grid[0]) ** 2
        return laws[m]

    def divergence(u: tuple[float, float], other: tuple[float, float]) -> float:
        P, Q = ((1 - rate) * density((0.0, 0.0)) + rate * density(m) for m in (u, other))
        return float(np.maximum(P - math.exp(epsilon) * Q, 0).sum())

    worst, angles = divergence((1.0, 0.0), (-1.0, 0.0)), np.linspace(0, math.pi, 9)
    rivals = [divergence((1.0, 0.0), (k * math.cos(t), k * math.sin(t))) for t in angles for k in (0.0, 0.5, 1.0)]
    assert max(rivals) <= worst + 1e-6  # the sum over the grid is not the integral
    assert min(rivals) < worst - 1e-3


@pytest.mark.slow
def test_a_record_at_the_queries_shrinks_the_noise_of_theorem_one():
    stages = [linear_stage((x, 0.0), n=100, ridge=0.01, threshold=math.inf) for x in (FAR, NEAR)]
    far, near = (InfluencePerturbation(starts=16).gross_error_sensitivity(s, queries(1)) for s in stages)
    assert far / near == pytest.approx(1.81, rel=1e-6)


def test_one_record_moves_an_answer_by_no_more_than_twice_the_influence_as_far_as_searched():
    generator = np.random.default_rng(0)
    grid, ends, most = np.linspace(-1, 1, 101), np.array([-1.0, 1.0])[:, None], 0.0
    for _ in range(2_000):
        n, ridge = int(generator.integers(2, 6)), 10 ** generator.uniform(-3, 1)
        v, s = generator.uniform(-1, 1, n), generator.choice([-1.0, 0.0, 1.0], n)
        v = np.where(generator.random(n) < 0.5, np.sign(v), v)
        A, theta = ridge + (v * v).mean(), (s * v).mean() / (ridge + (v * v).mean())
        gamma = np.abs(grid * (ends - grid * theta) - ridge * theta).max() / A
        moved = (s[1:] @ v[1:] + ends * grid) / n / (ridge + (v[1:] @ v[1:] + grid**2) / n)
        most = max(most, np.abs(moved - theta).max() * n / (2 * (1 + 1 / (n * ridge)) * gamma))
    assert 0.5 < most <= 1
