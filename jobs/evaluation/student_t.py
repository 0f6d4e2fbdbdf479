"""Quantiles of Student's t, for intervals over few seeds or documents."""

from __future__ import annotations

Z_95 = 1.959964
_T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
)  # fmt: skip
"""Student's t at 97.5 %, for 1 to 20 degrees of freedom."""


def t_quantile(freedom: int) -> float:
    """Student's t at 97.5 %. Beyond the table by the first terms of its expansion about the normal quantile: within 0.001."""
    if freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[freedom - 1]
    return Z_95 + (Z_95**3 + Z_95) / (4 * freedom)
