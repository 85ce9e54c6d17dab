"""A release of clipped records clips queries too, by a public map of each; any other refuses them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tests.release.helpers import DOMAIN, SCHEMA
from tests.release.test_file import function_release
from torchdpcate.cli.main import main
from torchdpcate.errors import InputError
from torchdpcate.release.file import load_release
from torchdpcate.verify.card_words import own_words

OUTSIDE = np.array([[-3.0, 0.5], [0.5, 9.0], [7.0, -7.0], [0.25, 0.5]])
INSIDE = np.array([[0.0, 0.5], [0.5, 1.0], [1.0, -1.0], [0.25, 0.5]])


def clipping():
    return replace(function_release(), schema=SCHEMA.handling("clip"))


def test_queries_are_moved_to_the_bounds(tmp_path):
    for release in (clipping(), load_release(clipping().save(tmp_path / "r.safetensors"))):
        np.testing.assert_array_equal(release.effect(OUTSIDE), release.effect(INSIDE))
        np.testing.assert_array_equal(release.noise_band(OUTSIDE), release.noise_band(INSIDE))
        frame = pd.DataFrame(OUTSIDE, columns=list(DOMAIN.names))
        np.testing.assert_array_equal(release.effect(frame), release.effect(INSIDE))
        with pytest.raises(InputError, match="missing or infinite"):
            release.effect(np.full((1, 2), np.nan))


def test_a_release_of_records_that_were_not_clipped_refuses(tmp_path):
    release = load_release(function_release().save(tmp_path / "r.safetensors"))
    assert "out_of_bounds" not in release.schema.to_dict()  # as in files from before there was a choice
    with pytest.raises(InputError, match="move these queries into the domain"):
        release.effect(OUTSIDE)


def test_predict_clips_and_the_card_says_so(tmp_path, capsys):
    path, answers = tmp_path / "r.safetensors", tmp_path / "out.csv"
    pd.DataFrame(OUTSIDE, columns=list(DOMAIN.names)).to_csv(tmp_path / "in.csv", index=False)
    for release in (clipping(), function_release()):
        release.save(path, overwrite=True)
        clips = release.schema.out_of_bounds == "clip"
        assert main(["predict", str(path), str(tmp_path / "in.csv"), "-o", str(answers), "--overwrite"]) == (
            0 if clips else 2
        )
        if clips:
            np.testing.assert_allclose(pd.read_csv(answers)["effect"], release.effect(INSIDE), rtol=1e-15)
        text = own_words(release)["implementation.preprocessing_and_hyperparameter_tuning"]
        assert ("of records and queries alike" in text) == clips
    assert "rows 1 to 4" in capsys.readouterr().err
