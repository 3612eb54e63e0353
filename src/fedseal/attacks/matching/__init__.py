"""Gradient matching: find inputs whose gradient looks like the observed one. One engine, many configurations.

A configuration is objective x priors x initialisation x labels x optimiser x schedule. Independent targets and restarts
are *lanes* of one vectorised batch; every array of the engine has the lane as its first dimension.
"""
