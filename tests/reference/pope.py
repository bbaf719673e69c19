"""POPE's published script, transcribed rule by rule: slow and plain."""

import re


def counts_as_no(answer):
    """The part up to the first full stop, without commas, has one of three words between single spaces."""
    sentence = re.match(r"[^.]*", answer, re.DOTALL).group()
    sentence = " " + sentence.replace(",", "") + " "
    return any(f" {word} " in sentence for word in ("No", "no", "not"))


def scores(answers, labels):
    """Accuracy, precision, recall, F1 and share of yes, by counting one answer after the other."""
    table = {"TP": 0, "FP": 0, "TN": 0, "FN": 0}
    for answer, label in zip(answers, labels, strict=True):
        prediction = "no" if counts_as_no(answer) else "yes"
        table[("T" if prediction == label else "F") + ("P" if prediction == "yes" else "N")] += 1
    total = sum(table.values())
    precision = table["TP"] / (table["TP"] + table["FP"])
    recall = table["TP"] / (table["TP"] + table["FN"])
    return {
        "accuracy": (table["TP"] + table["TN"]) / total,
        "precision": precision,
        "recall": recall,
        "F1": 2 * precision * recall / (precision + recall),
        "yes": (table["TP"] + table["FP"]) / total,
    }
