"""Inversion learned on rehearsals: from updates of public batches to their images, the defence a black box."""
