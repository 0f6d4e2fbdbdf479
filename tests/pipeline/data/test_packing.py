"""Documents inside windows: where each token's document starts, and that the model keeps documents apart by it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ncp_model import ModelSpec, build_model
from pipeline.data.packing import document_starts

EOS = 0
windows = st.tuples(st.integers(1, 3), st.integers(1, 30)).flatmap(
    lambda shape: arrays(np.int64, shape, elements=st.sampled_from([EOS, 1, 2, 3, 4]))
)


@given(windows)
def test_every_token_knows_where_its_document_starts(input_ids):
    starts = document_starts(input_ids, EOS)
    for row, found in zip(input_ids, starts, strict=True):
        start = 0
        for place, token in enumerate(row):
            assert found[place] == start
            if token == EOS:
                start = place + 1


def test_a_window_without_an_end_is_one_document():
    assert (document_starts(np.ones((2, 9), dtype=np.int64), EOS) == 0).all()


@pytest.mark.parametrize("lengths", [(7, 9), (1, 3, 12), (16,)])
def test_the_model_reads_each_document_as_if_it_were_alone(lengths):
    """Documents of any length, also not a multiple of the chunk size, packed into one window."""
    torch.manual_seed(0)
    model = build_model(ModelSpec.preset("tiny"), seed=1, dtype=torch.float64).eval()
    documents = [torch.cat([torch.randint(1, 512, (n - 1,)), torch.tensor([EOS])]) for n in lengths]
    window = torch.cat(documents)[None]
    starts = torch.from_numpy(document_starts(window.numpy(), EOS))
    packed = model(window, doc_starts=starts).logits[0]
    alone = torch.cat([model(document[None]).logits[0] for document in documents])
    torch.testing.assert_close(packed, alone, rtol=0, atol=1e-10)
