from tests.pages.releases import composed, rule
from torchdpcate.pages.reader import questions


def test_a_question_has_the_public_bounds_and_begins_near_the_released_mean():
    age, site = questions(composed())
    assert (age.name, age.low, age.high, age.levels) == ("age", 20.0, 80.0, ())
    assert age.start == 60.0  # the means of the records are 60 and site b; the fit has no noise
    assert (site.name, site.start, site.levels) == ("site", "b", ("a", "b", "c"))


def test_without_released_means_it_begins_in_the_middle():
    assert [question.start for question in questions(rule())] == [0.5]


def test_a_slider_moves_in_whole_numbers_between_whole_bounds_far_apart():
    age, _ = questions(composed())
    assert age.step == 1.0
    assert [question.step for question in questions(rule())] == [0.005]
