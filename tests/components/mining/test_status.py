import pytest

from components.mining._status import status_of


@pytest.mark.parametrize(
    ("counts", "status"),
    [
        ([3], "new"),
        ([4, 4], "recurring"),
        ([4, 5], "recurring"),  # 1.25 times: less than 1.5
        ([1, 2], "recurring"),  # twice, but only one more
        ([4, 6], "growing"),  # exactly 1.5 times and two more
        ([4, 3], "recurring"),  # above half of the peak
        ([4, 2], "mitigated"),  # exactly half
        ([4, 0], "mitigated"),  # one clean night is not enough
        ([4, 0, 0], "fixed"),
        ([4, 0, 0, 0], "fixed"),
        ([4, 0, 0, 1], "regressed"),
        ([4, 0, 3], "regressed"),  # mitigated, back above half of 4
        ([4, 0, 2], "mitigated"),  # back, but not above half
        ([4, 0, 0, 1, 1], "recurring"),  # peak is 1 since the return
        ([4, 8, 4], "mitigated"),  # half of the peak 8
        ([4, 8, 5, 9], "growing"),
    ],
)
def test_status(counts: list[int], status: str) -> None:
    """Each expectation follows from the bounds in the module's docstring; the peak is restarted by a regression."""
    assert status_of(counts) == status


@pytest.mark.parametrize("counts", [[], [0, 3]])
def test_counts_start_with_a_case(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="must start with a night that has cases"):
        status_of(counts)
