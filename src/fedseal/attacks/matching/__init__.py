"""Gradient matching: find inputs whose gradient looks like the observed one. One engine, many recipes.

A recipe is objective x priors x initialisation x labels x descent (an optimiser's step and the loop around it); an
attack is a frozen dataclass whose fields are its options and which says what recipe they stand for. Independent targets
and restarts are *lanes* of one vectorised batch; every array of the engine has the lane as its first dimension.
"""
