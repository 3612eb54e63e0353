"""R-GAP: the recursive closed-form attack on one image (Zhu and Blaschko, ICLR 2021)."""

from fedseal.attacks.rgap.attack import RecursiveAttack
from fedseal.attacks.rgap.ranks import LayerRank, rank_analysis

__all__ = ["LayerRank", "RecursiveAttack", "rank_analysis"]
