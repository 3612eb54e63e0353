"""Which defence to take, how strong: a search over defences that trains and attacks only what may be worth it."""
