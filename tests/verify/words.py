"""What holds of the sentences of any release."""

import math
import re

from torchdpcate.data.words import arm
from torchdpcate.release.file import Release
from torchdpcate.release.lines import EVERYBODY
from torchdpcate.verify.finding import MOST_WORDS, Findings, answer

JARGON = re.compile(
    r"_|\w=\w|\(\)|/|\.(md|py|yaml|csv|json)\b|\b(section|theorem|theory|docs|nuisances?|propensity|propensities|confounders?|"
    r"estimand|clipp?\w*|post-processing|mu|residuals?|curvatures?|adjacency|neighbours?|None|nan|inf)\b"
)
"""Names of settings, files and Python, and words of the theory."""
OF_PRIVACY = re.compile(r"\b(epsilon|delta|budget|certified|heuristic|conditional|guarantee|ledger)\b")
"""Words that are the privacy line's alone."""
_NUMBER = r"[+−]?[\d,]*\.?\d+"
_INTERVAL = re.compile(rf"({_NUMBER})\D*?\(95% interval ({_NUMBER}) to ({_NUMBER})\)")


def value(text: str) -> float:
    """Return the number that a text shows."""
    return float(text.replace(",", "").replace("−", "-"))


def check_words(release: Release) -> Findings:
    """Return the findings of a release, whose sentences must be short, plain, and agree with its numbers."""
    found = Findings.of(release)
    assert 1 <= len(found.head) <= 3, found.head
    assert len(found.privacy) == 1 + (release.privacy.claims and release.privacy.epsilon > 10), found.privacy
    assert all((found.whom, found.rests_on, found.person)), found
    assert tuple(map(tuple, answer(release))) == (found.head, found.rests_on)
    for _, sentences in found.sections():
        for words in sentences:
            assert len(words.split()) <= MOST_WORDS, words
            assert re.fullmatch(r"[A-Z0-9].*\.", words), words
            assert not JARGON.search(words), words
            assert sentences is found.privacy or not OF_PRIVACY.search(words), words
            for middle, low, high in _INTERVAL.findall(words):
                assert value(low) <= value(middle) <= value(high), words
    _agree(release, " ".join(found.head))
    return found


def _agree(release: Release, head: str) -> None:
    """Directions, what is better, and what cannot be concluded are those of the lines of everybody."""
    lines, domain = release.named, release.domain
    over = () if lines is None else lines.means or (True,) * len(lines.names)  # of sites the means alone
    places = [k for k, mean in enumerate(over) if mean and lines is not None and lines.groups[k] == EVERYBODY]
    if not places or release.decision is not None:
        known = release.decision is not None or (lines is not None and not math.isnan(lines.ends(0.95)[0, 0]))
        assert known or "othing can be concluded" in head, head
        return
    ends = [lines.ends(0.95)[k].tolist() for k in places]
    ups, downs = sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends)
    assert bool(re.search(r" raises | to raise ", head)) is bool(ups), head
    assert bool(re.search(r" lowers | to lower ", head)) is bool(downs), head
    unclear = [(low, high) for low, high in ends if low <= 0 <= high or math.isnan(low)]
    said = "is shown" in head or "nothing can be concluded" in head.lower()
    assert bool(unclear) is said or len(places) > 2, head
    gains = ups if domain.better == "higher" else downs
    speaks = bool(domain.better) and bool(gains or ((ups or downs) and len(unclear) == 0))
    assert ("this speaks for" in head) is speaks, head
    treated = arm(release.schema, release.schema.actions[1])
    assert release.arms or (f"this speaks for {treated}." in head) is bool(speaks and gains), head
