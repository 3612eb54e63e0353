"""A Flower app whose clients seal their updates and then mask them by SecAgg+."""
