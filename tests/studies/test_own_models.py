"""A user's own model in a study: its rows say which attention it has."""

import pytest
import torch
from torch import nn

from antiphase.errors import UserError
from antiphase.studies.cells import Attack, Own
from antiphase.studies.run import run_cells
from antiphase.studies.spec import Lab
from antiphase.studies.store import Store, identity


class MyDifference(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.lambda_q1 = nn.Linear(8, 40), nn.Parameter(torch.tensor(0.5))

    def forward(self, x):
        q1, q2, k1, k2, v = self.qkv(x).chunk(5, -1)
        one, two = ((q @ k.mT).softmax(-1) for q, k in ((q1, k1), (q2, k2)))
        return (one - self.lambda_q1 * two) @ v


class MyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.head = MyDifference(), nn.Linear(8, 10)

    def forward(self, images):
        return self.head(self.mix(images.squeeze(1)).mean(1))


def build(seed):
    torch.manual_seed(seed)
    return MyTransformer()


def own(**fields):
    return Own(build=build, series="mine", image_shape=(1, 8, 8), num_classes=10, **fields)


@pytest.mark.parametrize(
    ("stated", "expected"), [(None, "differential"), ("unknown", "unknown"), ("softmax", "softmax")]
)
def test_the_rows_say_what_was_found_or_stated(tmp_path, stated, expected):
    cell = Attack(model=own(attention=stated), data="digits", eps=(1 / 255,), limit=3, settings={"steps": 1})
    store = Store(tmp_path)
    run_cells([cell], Lab(store, progress=False), lambda _: None)
    assert store.rows(cell)["attention"].unique().to_list() == [expected]


def test_what_is_stated_is_part_of_the_identity_and_checked():
    assert identity(own(attention=None)) == identity(own())
    assert identity(own(attention="softmax")) != identity(own())
    with pytest.raises(UserError, match="attention 'diff': expected one of softmax, differential, none, unknown"):
        own(attention="diff")
