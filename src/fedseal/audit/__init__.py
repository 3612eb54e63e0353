"""Audits: a scenario becomes a plan, the plan becomes trials, trials become a verdict."""
