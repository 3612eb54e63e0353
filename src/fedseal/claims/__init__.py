"""What the papers claim, each as a check declared before it is run, and the ledger of what came out."""
