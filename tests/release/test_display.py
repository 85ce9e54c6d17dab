from dataclasses import replace

from tests.pages.releases import average, composed, rule
from torchdpcate.release.file import table


def test_a_line_says_what_it_is_and_what_it_claims():
    assert repr(composed()).startswith("<ComposedRelease: estimated effect of drug = 1 instead of 0 on days as a ")
    assert repr(composed()).endswith("n = 4,000>")
    for release in (composed(), rule(), average()):
        assert "\n" not in repr(release)
        assert release.privacy.claim.rstrip(".") in repr(release)
        assert "tensor" not in repr(release)


def test_a_table_has_the_bounds_and_no_markup_of_others():
    shown = composed()._repr_html_()
    assert "age: 20 to 80; site: a, b, c" in shown
    schema = replace(composed().schema, outcome="<script>alert(1)</script>")
    hostile = table(replace(composed(), schema=schema))
    assert "<script>" not in hostile
    assert "&lt;script&gt;" in hostile
