"""An attack's result in one line and as rows."""

import re

import antiphase as ap


def test_a_result_is_one_line_and_a_frame_of_rows():
    data = ap.load_data("specimen-fashion-mnist", limit=4)
    model = ap.load_model("specimen:vit-0")
    result = ap.attacks.fgsm(model, data.images(range(4)), None, ap.attacks.Threat(eps=8 / 255), ids=data.ids + 10)
    line = rf"<AttackResult fgsm, linf, ε = 8/255: {int(result.success.sum())} of 4 samples broken, [\d.]+ s.*>"
    assert re.fullmatch(line, repr(result))
    frame = result.frame()
    assert frame["sample"].to_list() == (data.ids + 10).tolist()
    assert frame["success"].to_list() == result.success.tolist()
    assert frame["distance"].to_list() == result.distance.tolist()
    assert frame.columns == [
        "sample",
        "label",
        "clean_prediction",
        "prediction",
        "success",
        "distance",
        "forwards",
        "backwards",
    ]
